"""Act on runs.

registry     which runs exist on which hosts
choice       which one of them is meant
waiting      says which hosts a run waits for
rejoining    says which hosts start a run again when they are booted, while no host has it
recent       the runs started from this machine
probe        asks hosts for their facts, and checks them
find_pythons  looks on hosts for Python with torch, GPUs and networks (`init`)
mesh         has hosts connect to each other (`check`)
images       copies container images between hosts (`setup`)
reach        checks the result of mesh
bandwidths   remembers the fastest network for the next `up`
deep         the all-reduce of `check --deep`; payload/ runs on the hosts
desktop      shows a message on the desktop
examination  asks all hosts for their facts, and sends the code
stand_ins    takes unused hosts in place of unreachable ones
queueing     waits for the turn of a run on its hosts
queue_hosts  for which hosts it waits, and which of them are enough
queue_place  keeps the place of a run while `restart` stops it
kept_hosts   keeps restarted hosts for the unfinished runs that wait for them
queued_runs  puts together the runs that wait, from the tickets on the hosts
pruning      chooses the finished runs to delete, each from all of its hosts or from none
inheritance  what a run gets from earlier runs of its name
out_of_reach  what rank 0 of an earlier run saved on a host that takes no part
launch       prepares all hosts, then starts the run
timing       how long each phase of a launch takes
rendezvous   chooses the address where the nodes meet
follow       reads the logs of a run from all hosts
readers      the threads of follow
printing     prints the lines of a run
status_line  the line below them that shows how far the run is
silence      tells that all ranks have ceased to print
gpu_use      asks how busy the GPUs are, for that line
log_files    writes the lines of a run to files
timeline     what happened in a run, in words
attach       `up` with a terminal: follows the run, and stops it on Ctrl-C
finishing    saves a snapshot and stops that run, at a signal of a batch system
conclusion   prints how a run ended, and what to do next
resume_command  the command for that, if only some hosts have a snapshot
bad_loss     notices a loss that is not finite
holding      holds a run that belongs to a job of a batch system
batch_system  asks it for the time limit of a job, and to queue the job again
ending       stops runs and cleans up (`kill`)
revive       starts the guards of restarted hosts again
newcomer     adds a host to a run
signaling    sends signals to ranks, and has them save a snapshot
shell        joins the terminal here to a command next to a run
forwarding   joins connections here to a port of a host
receiving    downloads files (`fetch`)
file_versions  whose version of a file is the newest
code_places  keeps files apart that different runs have written beside their code
local_code   finds the line of a traceback in the files here
missing_modules  says how to install a module that the ranks could not import
unsent_modules  explains why a module from here is not on the hosts
damaged_snapshots  names the files that ranks could not load
port_users   names other runs that may use the port of a run
shell_scripts  finds out whether a run starts a shell script
missing_ranks  explains why a script lacks the variables of a rank
kept_back    explains why a file from here was not sent
own_addresses  finds the line of a script that keeps ranks from meeting
diagnose     collects what the hosts know about a run, for orchestrator/diagnosis
"""
