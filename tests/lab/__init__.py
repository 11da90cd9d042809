"""Hosts on this one machine, each with a real sshd, for tests: see README.md beside this file."""

from .host import Host
from .lab import Lab, missing
from .processes import Process
from .waiting import wait_until

__all__ = ["Host", "Lab", "Process", "missing", "wait_until"]
