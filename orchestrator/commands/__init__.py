"""One module per command: parse the request, call, print.

run_commands  declares the commands that start a run or look at runs
change_commands  declares the commands that stop or change a run; orchestrator/cli.py declares the others
options       options that several commands share
context       the inventory, the hosts and the run of a command
same_name     says which of several runs a command is about
exit_codes    turns errors into messages and exit codes
manual        the manual page, and tables of the documentation
completion    completes runs, scripts and hosts
variables     the variables of --env-file and -e
hints         recognises common mistakes on the command line
foreign_commands  the commands of similar programs, and what to use here
deprecated    old names of options

up            `up`
up_options    its options, and the command lines that start the same run again
code_watch    `up --watch`
in_job        what is different in a job of a batch system
ps            `ps`
logs          `logs`
wait          `wait`
top           `top`
top_live      its board on a terminal, and the keys
board         the screen of `top`
board_table   the tables on it
board_rows    their rows and figures
curves        its curves and bars
report        `report`
report_data   what is in it
events        `events`
describe      `describe`
shell         `shell`
port_forward  `port-forward`
doctor        `doctor`
diagnose      `diagnose`
signals       `signal` and `snapshot`
kill          `kill`
restart       `restart`
restart_options  the options of the run, and those that `restart` adds
restarting    the command line of `restart` with other options
revive        `revive`
drain         `drain`
add           `add`
fetch         `fetch`
prune         `prune`
init          `init`
host_questions  asks which hosts (`init`)
trust         `trust`
check         `check`
check_text    what it prints for people
setup         `setup`
exec          `exec`
live_output   what it shows while the command runs
gpus          `gpus`
bench         `bench`
notify        `notify`
"""
