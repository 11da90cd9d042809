"""How a diagnosis is made of logs. All of it is pure; each step uses those above it.

record          what the hosts of a run know of its end beyond its output
times           times in logs -> Unix time
transcript      logs of any launcher -> lines, each with host, rank and time
recorder_lines  lines -> those that ddp-orch's recorder wrote, which prove no cause
tracebacks      lines -> exceptions, each with its chain and rank
exits           lines -> how processes ended
stacks          stacks of all ranks -> who keeps the others waiting
dumps           flight-recorder dumps -> who never joined a collective
scene           what all of these show together: hosts, ranks, order
shell_errors    what shells and their commands print when they fail
causes          knowledge/*.yaml -> signatures, meaning, fix, precedence
suspects        a sign of a cause, with the level that decides which one counts
signs           scene and causes -> suspects
busy            what a rank printed -> whether it was at work while others waited for it
hangs           time-outs of all ranks -> suspects
refine          suspects and scene -> suspects rewritten by what several lines show together, by the rules in rules/
ranking         suspects -> the ones that count, the first cause first
verdict         suspects and scene -> whether it is a failure at all
confidence      a suspect and the others -> how sure the cause is
fix_values      PORT and PID in a fix -> their values, from the evidence
engine          puts the steps together
unfinished      output of a run that still runs -> what has failed although no rank has ended
rendering       a diagnosis as text
missing         a missing file -> which hosts lack it
uneven_resume   lines -> hosts that did not resume at the step of the others
"""
