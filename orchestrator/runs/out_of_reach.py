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
    resume: str = "none"
    """run.resume of the new run."""

    def __str__(self) -> str:
        """One line."""
        what = f"{self.host}, where rank 0 ran last (run {self.run_id}), does not take part"
        if not self.newest:
            return f"{what}, and no other host has files: the ranks begin without a snapshot"
        when = {host: whole_seconds(rfc3339(at)) for host, at in self.newest.items()}
        if len({*when.values()}) == 1:
            return f"{what}: the ranks find only the files of {fold(when)}, the newest of {next(iter(when.values()))}"
        times = ", ".join(f"{host} of {at}" for host, at in when.items())
        return f"{what}: the ranks find only files of others, the newest of each: {times}"

    @property
    def advice(self) -> str:
        """One line. It may be that the host answers, and was only not chosen."""
        host = self.host
        advice = f"To continue from what rank 0 saved on {host}, start the run with {host} before it saves elsewhere"
        if self.resume == "head" and len({*map(int, self.newest.values())}) > 1:
            # the head's may be the older ones, and the others are made equal to them
            advice += ". For the newest of the others, if every rank saves all, add --set run.resume=newest"
        return advice


def find(hosts: Collection[str], probed: Mapping[str, Probed], resume: str = "none") -> OutOfReach | None:
    """`hosts`: all that take part, with the witness. None: nothing is out of reach, as far as they know.

    `resume`: run.resume.
    """
    answers = {host: probed[host].facts.led_last for host in hosts if host in probed}
    known = {host: led for host, led in answers.items() if led is not None}
    run_id = max((led.run_id for led in known.values()), default="")  # ids begin with the time
    newest = [led for led in known.values() if led.run_id == run_id]
    if not newest or any(led.here or led.host in hosts for led in newest):
        return None
    files = {host: led.newest for host, led in known.items() if led.newest is not None}
    return OutOfReach(newest[0].host, run_id, files, resume)
