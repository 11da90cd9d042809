"""The events of the gang on the head, as a file. Decisions are a function of events, so the events are what is kept."""

import contextlib
import json
import os
from typing import Any, Callable, Dict, Optional, Protocol, Tuple

from ..gang import gang, gang_events
from ..gang.gang_state import State, kill_window
from ..host import state
from ..link.link import elects, lease
from .resumption import is_wanted

NAME = "gang.jsonl"
Apply = Callable[[State, State, Tuple[gang_events.Action, ...]], None]  # the states before and after an event


def entry_of(event: gang_events.Event) -> Dict[str, Any]:
    return {"event": gang_events.event_name(event), "fields": event._asdict()}


def event_of(entry: Dict[str, Any]) -> gang_events.Event:
    """Raises ValueError, KeyError, TypeError or AttributeError for what is no entry."""
    return gang_events.EVENTS[entry["event"]](**entry["fields"])


def first_state(spec: Dict[str, Any]) -> State:
    """The state before the first event."""
    return gang.begin(
        spec["nodes"],
        spec["max_restarts"],
        spec["min_nodes"],
        spec.get("rejoin_timeout", 0.0),
        spec.get("max_nodes", 0),
        has_gate=True,
        has_agreement=is_wanted(spec),
        elects=elects(spec),
        kill_window=kill_window(lease(spec), elects(spec)),
    )


class EventLog(Protocol):
    """`state`: after all events. `started_at`: when the run began; None: not yet."""

    state: State
    started_at: Optional[float]

    @property
    def committed(self) -> State:
        """The state that orders follow from."""

    def add(self, event: gang_events.Event) -> None: ...


class GangLog:
    """Of a run that ends with its head: each event counts at once."""

    def __init__(self, folder: str, begun: State, apply: Apply) -> None:
        """`begun`: the state before the first event. `apply` carries out what follows from a new event."""
        self.state = begun
        self.started_at: Optional[float] = None
        self._apply = apply
        self._file = self._replay(os.path.join(folder, NAME))

    @property
    def committed(self) -> State:
        return self.state

    def _replay(self, path: str) -> int:
        file = _open(path)
        known = os.pread(file, os.fstat(file).st_size, 0)
        if known and not known.endswith(b"\n"):  # our predecessor was killed as it wrote: what follows is a new line
            with contextlib.suppress(OSError):
                os.write(file, b"\n")
        for line in known.split(b"\n"):
            try:
                event = event_of(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a torn last line: that event will come again with the nodes' statuses
            self._step(event)
        return file

    def _step(self, event: gang_events.Event) -> Tuple[gang_events.Action, ...]:
        self.state, actions = gang.step(self.state, event)
        if isinstance(event, gang_events.StartRequested) and self.started_at is None:
            self.started_at = event.at
        return actions

    def add(self, event: gang_events.Event) -> None:
        before = self.state
        actions = self._step(event)
        if self.state != before:
            self._write((json.dumps(entry_of(event)) + "\n").encode("ascii"))
        self._apply(before, self.state, actions)

    def _write(self, line: bytes) -> None:
        """If the disk takes no more, the gang continues in memory. Only a restart of this recorder loses the event."""
        with contextlib.suppress(OSError):
            written = os.write(self._file, line)
            if written < len(line):  # or the next event would be on the same line
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in state.UNWRITABLE:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # writing to it fails, as on a full disk
