"""ddp-orch's controller: reads an inventory, reaches every host over SSH, starts, looks and commands."""

__version__ = "0.1.0"
