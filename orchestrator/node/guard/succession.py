"""Start a new guard for a run that has begun already, in place of one that was killed.

Whoever starts it holds run.lock and hands it over, so a run never has two guards.
"""

import contextlib
import os
import select
import socket
from typing import Any, Dict, Iterator, List

from ..host import guard_locks, memory_folder, state
from . import guard_process
from .past import Past

ANSWER_WINDOW = 20.0  # s for the new guard to start its recorder


class NotPossible(Exception):
    """No new guard can be started here; the text says why."""


def claim(folder: str) -> List[int]:
    """run.lock of a run whose guard was killed: it is not left behind. Empty if another process starts a guard."""
    taken: List[int] = []
    try:
        guard_locks.take_run(folder, taken)
    except (guard_locks.Held, OSError):
        release(taken)
    return taken


def release(taken: List[int]) -> None:
    while taken:
        os.close(taken.pop())


@contextlib.contextmanager
def held(folder: str, spec: Dict[str, Any], taken: List[int]) -> Iterator[List[int]]:
    """The locks of the run, for a new guard to take over. Raises NotPossible. `taken`: by `claim`; it is released."""
    try:
        if not taken:
            guard_locks.take_run(folder, taken)
        guard_locks.take(spec, taken)
        guard_locks.take_output(spec, taken)
        yield taken
    except (guard_locks.Held, memory_folder.Unusable, state.StateError, OSError) as error:
        raise NotPossible(str(error)) from error
    finally:
        release(taken)


def replace_guard(
    folder: str,
    spec: Dict[str, Any],
    private: Dict[str, Any],
    listeners: List[socket.socket],
    past: Past,
    taken: List[int],
) -> None:
    """Start a guard in place of one that was killed, and whose processes have been ended. Raises NotPossible.

    `taken`: by `claim`; it is released.
    """
    with held(folder, spec, taken):
        if os.path.exists(os.path.join(folder, "stop.json")):  # looked at once we hold the lock: see serve/stop.py
            raise NotPossible("the run is being stopped")
        try:
            control = guard_process.start(folder, spec, private, {"link": listeners}, taken, past._asdict())
        except (guard_process.NotStarted, OSError) as error:
            raise NotPossible(str(error)) from error
        with control:
            if not select.select([control], [], [], ANSWER_WINDOW)[0] or not control.recv(4096):
                raise NotPossible("the new guard has ended at once")
