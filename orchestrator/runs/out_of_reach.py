"""Say that rank 0 of an earlier run of the name saved on a host that does not take part in the new one. No IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..output.console import fold
from ..output.lines import rfc3339, whole_seconds
from .probe import Probed


@dataclass(frozen=True)
class OutOfReach:
    """What rank 0 saved last, on a host that does not take part."""

    host: str
    run_id: str
    newest: Mapping[str, float]
    """By host of the new run with files in its output folder: when the newest one was written, Unix time."""

    def __str__(self) -> str:
        """One line."""
        what = f"{self.host}, where rank 0 ran last (run {self.run_id}), does not take part"
        if not self.newest:
            return f"{what}, and no other host has files: the ranks begin without a snapshot"
        when = whole_seconds(rfc3339(max(self.newest.values())))
        return f"{what}: the ranks find only the files of {fold(self.newest)}, the newest of {when}"

    @property
    def advice(self) -> str:
        return f"To continue from what rank 0 saved on {self.host}, wait for {self.host} and start the run with it"


def find(hosts: Collection[str], probed: Mapping[str, Probed]) -> OutOfReach | None:
    """`hosts`: all that take part, with the witness. None: nothing is out of reach, as far as they know."""
    answers = {host: probed[host].facts.led_last for host in hosts if host in probed}
    known = {host: led for host, led in answers.items() if led is not None}
    run_id = max((led.run_id for led in known.values()), default="")  # ids begin with the time
    newest = [led for led in known.values() if led.run_id == run_id]
    if not newest or any(led.here or led.host in hosts for led in newest):
        return None
    files = {host: led.newest for host, led in known.items() if led.newest is not None}
    return OutOfReach(newest[0].host, run_id, files)
