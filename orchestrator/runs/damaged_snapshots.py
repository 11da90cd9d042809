"""Name the damaged snapshot that ended a run, and say which others its hosts have. Changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..answers.files import OUTPUTS
from ..answers.recorded import RECORD
from ..diagnosis.engine import DamagedFile, Diagnosis
from ..hosts.fleet import Fleet
from ..hosts.session import Session
from ..inventory.advice import AboutRun
from ..inventory.model import Host
from ..output.console import fold
from ..output.console import size as console_size
from ..output.lines import rfc3339, whole_seconds
from ..output.terminal import one_line
from .receiving import RemoteFile, check_listing
from .resume_command import SNAPSHOT

CODE = "code/"
"""Below it, the list of outputs has the files beside the code."""
MOST_NAMED = 3  # snapshots in a fix, and hosts with a command each


@dataclass(frozen=True)
class Snapshots:
    """The files of a run on one host whose names are those of snapshots."""

    files: tuple[RemoteFile, ...]
    """The newest first."""
    output: str
    """The output folder."""
    record: str
    """The folder of the run."""
    is_shared: bool = False
    """Other hosts see the same output folder."""

    @property
    def damaged(self) -> tuple[RemoteFile, ...]:
        """Empty files, or the only file. Of several files with data, the logs do not show which one is damaged."""
        return tuple(file for file in self.files if not file.size) or (self.files if len(self.files) == 1 else ())

    def place(self, file: RemoteFile) -> str:
        return f"{self.record if file.path.startswith(CODE) else self.output}/{file.path}"


def explain(
    diagnosis: Diagnosis, run_id: str, hosts: Sequence[Host], shared: Collection[str], fleet: Fleet
) -> Diagnosis:
    """With the damaged files, if the first cause is a damaged snapshot. `shared`: hosts whose output folder is one."""
    if not diagnosis.findings or diagnosis.findings[0].code != "checkpoint-corrupt":
        return diagnosis

    def ask(host: Host, session: Session) -> Snapshots:
        record = session.request(RECORD, {"run_id": run_id})
        arguments = {"run_id": run_id, "pattern": "", "parts": ["output", "code"]}
        listed = check_listing(session.request(OUTPUTS, arguments))
        files = sorted(filter(lambda file: SNAPSHOT.search(file.path), listed), key=lambda file: -file.mtime)
        return Snapshots(tuple(files), record.output or "", record.folder or "", host.name in shared)

    return with_snapshots(diagnosis, fleet.each(hosts, ask, "looking for the snapshots").done)


def with_snapshots(diagnosis: Diagnosis, by_host: Mapping[str, Snapshots]) -> Diagnosis:
    """The same, with what the hosts have in the fix of the first cause."""
    texts = {host: text for host, snapshots in by_host.items() if (text := _describe(snapshots))}
    if not texts:
        return diagnosis
    hosts_of: dict[str, list[str]] = {}
    for host, text in texts.items():
        hosts_of.setdefault(text, []).append(host)
    there = [f"On {fold(hosts)}: {text}." for text, hosts in hosts_of.items()][:MOST_NAMED]
    first, *others = diagnosis.findings
    first = replace(first, fix=" ".join([*there, first.fix]))
    damaged: dict[tuple[str, str], DamagedFile] = {}
    for host, snapshots in by_host.items():
        for file in snapshots.damaged:
            place = snapshots.place(file)
            of_all = snapshots.is_shared and not file.path.startswith(CODE)
            damaged.setdefault(("" if of_all else host, place), DamagedFile(host, place, file.size))
    return replace(diagnosis, findings=(first, *others), damaged=tuple(damaged.values()))


def _describe(snapshots: Snapshots) -> str:
    names = [
        f"{one_line(file.path)} ({console_size(file.size)}, {whole_seconds(rfc3339(file.mtime / 1e9))})"
        for file in snapshots.damaged or snapshots.files
    ]
    text = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    if not text or not snapshots.damaged:
        return f"the newest snapshots are {text}" if text else ""
    others = [file for file in snapshots.files if file not in snapshots.damaged]
    left = f"before it, {one_line(others[0].path)}" if others else "no other snapshot"
    return f"{text}, and {left}"


def commands(damaged: Sequence[DamagedFile], about: AboutRun) -> dict[str, str]:
    """The commands that put damaged files out of the way, each with its purpose. An empty file has nothing to keep."""
    by_host: dict[str, list[DamagedFile]] = {}
    for file in damaged:
        by_host.setdefault(file.host, []).append(file)
    if len(by_host) > MOST_NAMED or len(damaged) > len(by_host) or not all(file.path.isprintable() for file in damaged):
        return {}
    found = {}
    for host, (file,) in by_host.items():
        words = ["rm", file.path] if not file.size else ["mv", file.path, f"{file.path}.damaged"]
        purpose = "remove the empty snapshot" if not file.size else "put the damaged snapshot out of the way"
        found[f"{about.of_all('exec', '--hosts', host)} -- {shlex.join(words)}"] = purpose
    return found
