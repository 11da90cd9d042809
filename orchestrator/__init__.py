"""ddp-orch's controller: reads an inventory, reaches every host over SSH, starts, looks and commands.

cli     declares the commands, together with commands/run_commands.py and change_commands.py
errors  the errors that users see, each with its exit code
"""

__version__ = "0.1.0"
