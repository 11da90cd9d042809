"""Hosts on this one machine, each with a real sshd, for tests: see README.md beside this file."""

from .host import Host, Process
from .lab import Lab, missing
from .waiting import wait_until

__all__ = ["Host", "Lab", "Process", "missing", "wait_until"]
