"""How a diagnosis is made of logs (engine.py puts it together). All of it is pure; each step uses those above it.

times, transcript     logs of any launcher      -> lines, each with host, rank and time
recorder_lines        lines                     -> those of the last attempt, without what ddp-orch's recorder writes
tracebacks            lines                     -> exceptions, each with its chain and rank
exits                 lines                     -> how processes ended
stacks, dumps         what the hosts recorded   -> who keeps the others waiting
scene                 all of these              -> what they show together: hosts, ranks, order
causes                knowledge/*.yaml          -> signatures, meaning, fix, precedence
signs, hangs          scene and causes          -> suspects
refine, rules         suspects and scene        -> suspects rewritten by what several lines show together
verdict               suspects and scene        -> whether it is a failure at all
confidence            a suspect and the others  -> how sure it may be called
"""
