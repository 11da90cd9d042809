"""Inventory -> Plan, and the code that is sent.

plan         what to start where
node_spec    what the node program of each host gets of it
losses       what a user may count on in vain when a host is lost
job_limit    ends a run before the job of its hosts
newcomer     a host that is added to a run
launchers    what each launcher starts, as templates
description  a plan as text or JSON
entrypoint   what `up` runs: a script, a module or the bundled trainer
errexit      whether a shell script goes on after a failure
function_call  the command that calls a function in a rank
other_command  the error that names the command line that was meant
accelerate   what a configuration of accelerate asks for
accelerate_ranks  the ranks of accelerate launch on uneven hosts
invocation   recognises the command lines of other launchers after `--`
launcher_flags  the flags of other launchers
leading      takes variables and `uv run` from the front of a command
once_per_host  scripts that start the ranks of a host themselves
sharding     whether a script gives each rank all of the data
python_files  what a script and its own modules import and name
import_roots  modules of the code that are not beside the script
run_program  by which python becomes a program of the host
snapshot     the archive of the code
frozen       a copy of the code of a run that waits
code_files   the files of the code
git          which files git tracks or ignores
commit       the git commit of the code, and whether files differ from it
"""
