"""The errors that users see, each with its exit code.

OrchError
├── UsageError        2   wrong arguments, or something that is not implemented yet
│   └── InventoryError    the inventory: file, line, key, how to fix it
├── FindingsError     3   something found before the start would break the run
├── UnreachableError  4   a host unreachable, refused or lost; its login or its key
├── HeldError         5   a lock, port or GPU in use by someone else
├── RunFailed         1   the training itself failed
├── OutputError      74   stdout or stderr of this program cannot be written
├── RunStopped       75   the run saved a snapshot and stopped; start it again to continue
├── TimedOut        124   `wait --timeout`: the run has not ended in time
└── Interrupted     130   killed, or interrupted by a person

Any other exception that ends the program is a bug in ddp-orch: exit code 70.
"""

from __future__ import annotations


class OrchError(Exception):
    """An error for users. `str(error)` says where, what, and how to fix it; no traceback is shown."""

    exit_code = 70


class UsageError(OrchError):
    exit_code = 2


class InventoryError(UsageError):
    """Wrong input in an inventory. `str(error)` starts with `FILE:LINE: KEY: `."""


class FindingsError(OrchError):
    exit_code = 3


class UnreachableError(OrchError):
    exit_code = 4


class HeldError(OrchError):
    exit_code = 5


class RunFailed(OrchError):
    exit_code = 1


class OutputError(OrchError):
    exit_code = 74  # EX_IOERR


class RunStopped(OrchError):
    exit_code = 75  # EX_TEMPFAIL: batch systems can requeue a job that ends with it


class TimedOut(OrchError):
    exit_code = 124  # as of timeout(1)


class Interrupted(OrchError):
    exit_code = 130
