"""The machine: processes, network, state."""
