"""Rules that rewrite suspects, by theme; refine.py says in which order they run. Pure.

connections       who could not reach whom, and which rank or host has gone
devices           GPUs and memory
endings           ends of processes: the cause, or only the launcher's or the script's own doing
hidden_modules    imports of the own files of the user: those that hide a module, and refused ones
lost_hosts        hosts that the run lost
missing_files     files that are missing on some hosts
own_calls         variables that are not set, ports, and missing commands, of the script itself
shell_commands    commands of a shell script that fail and end it
unreadable_files  files that are no checkpoints, or that torch.load refuses
run_record        what the hosts of a run know beyond its output

Each is a function `(suspects, scene) -> suspects`. Its docstring says which case it serves and why it stands where it
stands; tests/unit/test_rules.py has that case.
"""
