"""A run, as Python code handles it: its state and output, its end, its results. Each method runs a command."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import Interrupted, OrchError, RunFailed, RunStopped, UnreachableError, UsageError
from ..output.console import fold
from ..output.finding import Finding
from ..plan.function_call import FOLDER
from . import command_line

ENDS = (0, RunFailed.exit_code, UnreachableError.exit_code, RunStopped.exit_code, Interrupted.exit_code)
"""Exit codes of a command that follows a run: they tell how the run ended."""


@dataclass(frozen=True)
class LogLine:
    """A line of the output of a run."""

    at: datetime
    """When the host read it, in UTC."""
    host: str
    rank: int | None
    """None: a line of torchrun or ddp-orch."""
    stream: str
    """`stdout`, `stderr`, or `agent` for the lines of torchrun and ddp-orch."""
    attempt: int
    text: str


@dataclass(frozen=True)
class NodeStatus:
    """A run on one of its hosts."""

    host: str
    node_rank: int | None
    state: str
    exit_code: int | None
    """Of the ranks of this host; None while they run, and if a signal ended them."""
    signal: int | None


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    state: str
    """`starting`, `running`, `suspect`, `restarting`, `waiting`, `stopping`, `succeeded`, `failed`, `stopped`, `killed`
    or `lost`.
    """
    attempt: int
    """1 for the first start; each restart adds 1."""
    started_at: datetime
    nodes: tuple[NodeStatus, ...]


@dataclass(frozen=True)
class Run:
    """A run on its hosts. It continues if this object, or the whole program, ends."""

    run_id: str
    name: str
    """As given; otherwise the id."""
    inventory: str | None = None
    """Where the hosts of the run are described. None: the inventory that it was started with."""

    def status(self) -> RunStatus:
        """Ask the hosts for the state of the run.

        Raises UnreachableError if no host that has answered knows the run, UsageError if all have answered.
        """
        words = ["ps", "--all", *self._inventory_option()]
        output, code = command_line.call([*words, "--json"], (0, UnreachableError.exit_code))
        for run in json.loads(output or "[]"):
            if run["run_id"] == self.run_id:
                return read_status(run)
        if code:
            raise UnreachableError(f"run {self.run_id}: no host that has answered knows it")
        raise UsageError(f"run {self.run_id}: its hosts do not know it; it may have been pruned")

    def logs(
        self,
        *,
        follow: bool = True,
        rank: int | Sequence[int] | None = None,
        host: str | None = None,
        stream: str | None = None,
        grep: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """The output of all hosts, ordered by time. Secrets are masked.

        `follow`: until the run ends, which raises no exception however it ends. `host`: a pattern such as
        `gpu[01-04]`. `grep`: a regular expression. `since`, `until`: times with a time zone. `tail`: only the last
        lines of each stream.
        """
        words = ["logs", self.run_id, *self._inventory_option(), *(["--follow"] if follow else [])]
        ranks = [rank] if isinstance(rank, int) else rank
        options = {
            "--rank": None if ranks is None else ",".join(map(str, ranks)),
            "--host": host,
            "--stream": stream,
            "--grep": grep,
            "--since": None if since is None else _print_time(since),
            "--until": None if until is None else _print_time(until),
            "--tail": tail,
        }
        words += [f"{option}={value}" for option, value in options.items() if value is not None]
        for line in command_line.stream(words, ENDS):
            yield LogLine(**{**line, "at": _parse_time(line["at"])})

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the run has ended. Hosts that are rebooted in the meantime are brought back into it.

        Raises RunFailed if it failed, with the first cause; RunStopped if it saved a snapshot and was stopped;
        Interrupted if it was killed; UnreachableError if it was lost or no host answers. Raises TimeoutError after
        `timeout` seconds; the run continues.
        """
        command = command_line.Command(["wait", self.run_id, *self._inventory_option()])
        try:
            code = command.wait(timeout)
        except TimeoutError:
            raise TimeoutError(f"run {self.run_id} has not ended after {timeout} s") from None
        finally:
            command.stop()
        if code:
            error = command.error(code)
            raise type(error)("\n".join([str(error), *self._describe_causes(code)]))

    def returned(self) -> list[Any]:
        """Wait until the run has ended, and return what its function has returned in each rank, in the order of ranks.

        Raises as `wait`; and UsageError if the run was not started with a function.
        """
        self.wait()
        with tempfile.TemporaryDirectory(prefix="ddp-orch-") as folder:
            self.fetch(f"{FOLDER}/{self.run_id}", to=folder)
            files = [path.read_text("utf-8") for path in sorted(Path(folder).rglob("rank-*.json"))]
        return _values(map(json.loads, files))

    def fetch(self, pattern: str | None = None, *, to: str | Path | None = None) -> Path:
        """Download the outputs of the run, those of each host to a folder of its own. Returns the folder of them all.

        `pattern`: only these files, such as `*.pt` or `logs/**/*.json`. `to`: the folder; by default, one with the name
        of the run in the current folder. Files that the run wrote beside its code are in `HOST/code`, or in
        `HOST/code-RUN_ID` if that has files of another run. Raises UsageError if no file matches, RunFailed if some
        files could not be fetched or are older than those here, UnreachableError if a host does not answer.
        """
        folder = Path(self.name if to is None else to)
        words = ["fetch", self.run_id, *([pattern] if pattern else []), "-o", str(folder)]
        command_line.call([*words, *self._inventory_option()])
        return folder

    def diagnose(self) -> tuple[Finding, ...]:
        """The causes of a failure, the first cause first. Empty if there was none."""
        words = ["diagnose", self.run_id, *self._inventory_option()]
        findings = command_line.call_json(words, (0, UnreachableError.exit_code))["findings"]
        return tuple(map(_read_finding, findings))

    def snapshot(self) -> None:
        """Have the script save a snapshot, and wait for it. Raises UsageError if it does not handle the signal."""
        command_line.call(["snapshot", self.run_id, *self._inventory_option()])

    def kill(self, *, grace: float | None = None) -> None:
        """Stop the run, and verify that no process of it is left. A run that has ended is no error.

        `grace`: seconds between SIGTERM and SIGKILL; by default, run.grace of the inventory. Raises RunFailed if a
        process is left, UnreachableError if a host does not answer.
        """
        options = [] if grace is None else [f"--grace={grace}"]
        command_line.call(["kill", self.run_id, *options, *self._inventory_option()])

    def _inventory_option(self) -> list[str]:
        return [] if self.inventory is None else [f"--inventory={self.inventory}"]

    def _describe_causes(self, code: int) -> list[str]:
        if code not in (RunFailed.exit_code, UnreachableError.exit_code):
            return []
        try:
            causes = self.diagnose()[:1]
            return [line for cause in causes for line in (f"{fold(cause.hosts)}: {cause.message}", *cause.evidence)]
        except OrchError as error:
            command_line.logger.warning("no diagnosis: %s", error)
            return []


def read_status(run: Mapping[str, Any]) -> RunStatus:
    """A run in the output of `ps --json`."""
    keys = ("host", "node_rank", "state", "exit_code", "signal")
    nodes = tuple(NodeStatus(**{key: node[key] for key in keys}) for node in run["nodes"])
    return RunStatus(run["state"], run["attempt"], _parse_time(run["started_at"]), nodes)


def _read_finding(finding: Mapping[str, Any]) -> Finding:
    at = None if finding["at"] is None else _parse_time(finding["at"]).timestamp()
    lists = {key: tuple(finding[key]) for key in ("hosts", "evidence")}
    return Finding(**{**finding, **lists, "at": at})


def _values(results: Iterator[Mapping[str, Any]]) -> list[Any]:
    """The values of the last attempt: an earlier one may have had more ranks."""
    newest: dict[int, dict[int, Any]] = {}
    for result in results:
        newest.setdefault(result["attempt"], {})[result["rank"]] = result["value"]
    return [value for _, value in sorted(newest[max(newest)].items())]


def _print_time(at: datetime) -> str:
    if at.tzinfo is None:
        raise UsageError(f"{at}: the time has no time zone; expected, for example, datetime.now(timezone.utc)")
    return at.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
