"""Two hosts on this machine, behind an SSH server of its own."""
