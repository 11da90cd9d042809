"""Act on runs.

registry   which runs exist on which hosts, and which one is meant
probe      ask hosts for their facts, and judge them
mesh       have hosts dial each other (`check`); reach judges it, bandwidths remembers which network is fastest
deep       the all-reduce of `check --deep`; payload/ is what runs on the hosts
launch     prepare all hosts, then start the run; rendezvous chooses the address where the nodes meet
follow     read the logs of a run from all hosts; readers has the threads, printing shows the lines
attach     `up` with a terminal: follow, stop, conclude
ending     stop runs and clean up (`kill`)
receiving  download files (`fetch`)
diagnose   what the hosts of a run know, handed to orchestrator/diagnosis
recent     the runs started from this machine; kept_back: a missing file that lies here
"""
