"""One module per command: parse the request, call, print.

run_commands  declares the commands that start a run or look at runs; orchestrator/cli.py declares the others
options       options that several commands share; completion, hints and deprecated: what people type
context       the inventory, the hosts and the run of a command
exit_codes    turns errors into messages and exit codes
board         the table that `top` shows
"""
