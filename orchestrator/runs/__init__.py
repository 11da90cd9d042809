"""Act on runs.

registry   which runs exist on which hosts, and which one is meant
probe      ask hosts for their facts, and check them
mesh       have hosts connect to each other (`check`); reach checks the result, bandwidths remembers the fastest network
deep       the all-reduce of `check --deep`; payload/ is what runs on the hosts
launch     prepare all hosts, then start the run; rendezvous chooses the address where the nodes meet
follow     read the logs of a run from all hosts; readers has the threads, printing prints the lines
attach     `up` with a terminal: follow the run, stop it on Ctrl-C, print how it ended
revive     start the guards of restarted hosts again
ending     stop runs and clean up (`kill`)
receiving  download files (`fetch`)
diagnose   collect what the hosts know about a run, for orchestrator/diagnosis
recent     the runs started from this machine; kept_back explains why a file from here was not sent
"""
