"""The phase of an attempt, apart from the messages that carry it: `ps` needs this on every host, and nothing else."""

import enum


class AttemptPhase(enum.Enum):
    """The phase of the newest attempt on one node, as its guard sees it."""

    PREPARED = "prepared"  # there was none yet
    RUNNING = "running"
    EXITED = "exited"  # none of its processes is left
