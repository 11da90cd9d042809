"""Runs of stand-in commands on hosts that are folders of this machine: the whole node program, without SSH and torch.

Every host has a state folder of its own, is reached through a `LocalConnection`, and is started as `launch` does it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import signal
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import host_facts
from host_facts import PYTHON, decoded
from lab.waiting import wait_until
from operations import OPERATIONS

from orchestrator.answers.decode import MalformedAnswer
from orchestrator.answers.operation import Operation
from orchestrator.hosts.node_program import NodeProgram, node_program
from orchestrator.hosts.session import Session
from orchestrator.inventory import model
from orchestrator.inventory.run_ids import new_run_id
from orchestrator.node.host import processes, state, sweep
from orchestrator.node.recorder import journal
from orchestrator.node.serve import journal_reader
from orchestrator.plan import launchers, node_spec, plan
from orchestrator.ssh.pipe import LocalConnection

HEAVY = "import os\nimporter = os.getpid()\n"  # a module to preload
AGENT = (str(Path(__file__).with_name("stand_in_agent.py")), "{nproc}", "{node_rank}")


def impatient_program() -> NodeProgram:
    """The node program without the pause before a restart, and which restarts after any failure."""
    return changed_program(
        "team.py",
        {
            b"\nBACKOFF, BACKOFF_MOST = 1.0, 30.0 ": b"\nBACKOFF, BACKOFF_MOST = 0.0, 00.0 ",
            b"\nAT_START = 30.0": b"\nAT_START = 00.0",
        },
    )


def changed_program(module: str, changes: Mapping[bytes, bytes]) -> NodeProgram:
    """The node program with other constants in one module."""
    program = node_program()
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(program.data)) as archive, zipfile.ZipFile(buffer, "w") as changed:
        (target,) = (name for name in archive.namelist() if name.endswith(f"/{module}"))
        for name in archive.namelist():
            source = archive.read(name)
            for old, new in changes.items() if name == target else ():
                assert old in source and len(old) == len(new)
                source = source.replace(old, new)
            changed.writestr(name, source)
    return NodeProgram(hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue(), program.sources)


class Host:
    def __init__(self, folder: Path, python: str, program: NodeProgram) -> None:
        self.state = folder
        self.python = python
        self.program = program
        self.session = self.connect()

    def connect(self) -> Session:
        before = os.environ.get("DDP_ORCH_STATE_DIR")
        os.environ["DDP_ORCH_STATE_DIR"] = str(self.state)
        try:
            return PlainSession(self.state.name, LocalConnection(), self.python, self.program, secrets.token_hex(16))
        finally:
            del os.environ["DDP_ORCH_STATE_DIR"]
            if before is not None:
                os.environ["DDP_ORCH_STATE_DIR"] = before


class PlainSession(Session):
    """Takes operations by name, and gives answers as they came, once it is clear that they can be decoded."""

    def request(self, operation: Any, arguments: Any, **options: Any) -> Any:
        if not isinstance(operation, str):
            return super().request(operation, arguments, **options)
        answer = super().request(Operation(operation, Any), arguments, **options)  # type: ignore[arg-type]
        typed = [one for one in OPERATIONS if one.name == operation]
        trouble = [error for one in typed for error in [malformed(one, answer)] if error]
        assert len(trouble) < len(typed), trouble
        return answer


def malformed(operation: Operation[Any], answer: Any) -> str | None:
    try:
        operation.decode(answer)
    except MalformedAnswer as error:
        return str(error)
    return None


class Run:
    """One run on all hosts. What is asked of a host is asked by its number; 0 is the head."""

    def __init__(self, run_id: str, hosts: Sequence[Host]) -> None:
        self.run_id = run_id
        self.hosts = hosts
        self.key = secrets.token_bytes(32)

    def folder(self, node: int = 0) -> Path:
        (folder,) = self.hosts[node].state.glob(f"*/runs/{self.run_id}")
        return folder

    def record(self, name: str, node: int = 0) -> dict[str, Any] | None:
        return state.read(str(self.folder(node) / name))

    def journal(self, node: int = 0) -> dict[str, bytes]:
        """What every stream holds so far, by `ATTEMPT.SOURCE.CHANNEL`."""
        found = {}
        for stream, parts in journal.segments(str(self.folder(node) / "log")).items():
            reader, data = journal_reader.Reader(), []
            while pieces := reader.read(parts, 1 << 20):
                data += [piece.data for piece in pieces]
            found[str(stream)] = b"".join(data)
        return found

    def wait_for(self, text: str, stream: str, node: int = 0, timeout: float = 20.0) -> None:
        wait_until(lambda: text.encode() in self.journal(node).get(stream, b""), timeout, f"{text!r} in {stream}")

    def guard(self, node: int = 0) -> processes.Process:
        found = self.record("state.json", node)
        assert found is not None
        return processes.Process(*found["guard"])

    def recorder(self, node: int = 0) -> processes.Process | None:
        for one in processes.descendants(self.guard(node).pid):
            if processes.name(one.pid) == "ddp-recorder":
                return one
        return None

    def members(self) -> list[processes.Process]:
        """Processes of the run on all hosts, by their mark."""
        return [process for process, mark in processes.marks().items() if mark == self.run_id]

    def wait_over(self, timeout: float = 30.0) -> list[dict[str, Any]]:
        """The exit records of all hosts, once all guards have gone."""
        for node in range(len(self.hosts)):
            folder = str(self.folder(node))
            # a killed guard leaves its lock for an instant, until the next one has it
            wait_until(lambda node=node: self.record("exit.json", node), timeout, f"the run ends on {node}")
            wait_until(lambda folder=folder: not state.guarded(folder), timeout, f"the guard of {node} ends")
        wait_until(lambda: not self.members(), 5.0, "no process of the run is left")
        records = [self.record("exit.json", node) for node in range(len(self.hosts))]
        assert None not in records, f"a host has no exit record: {records}"
        return [record for record in records if record is not None]

    def stop(self, node: int = 0, grace: float | None = None, **more: Any) -> dict[str, Any]:
        asked = {"run_id": self.run_id, "grace": grace, "by": "the test", **more}
        return self.hosts[node].session.request("stop", asked, extra_time=300.0 if grace is None else grace)

    def listed(self, node: int = 0) -> dict[str, Any]:
        """As `kill` asks for it."""
        found = self.hosts[node].session.request("list", {"members": True})["runs"]
        return next(dict(run) for run in found if run["run_id"] == self.run_id)


class Runs:
    """Starts runs, and afterwards ends whatever is left of them."""

    def __init__(self, folder: Path, program: NodeProgram | None = None, workdir: Path | None = None) -> None:
        """`folder`: for the hosts. `workdir`: of the commands; default: the same."""
        self._folder = folder
        self._workdir = workdir or folder
        self._program = program or node_program()
        self._hosts: list[Host] = []
        self._started: list[Run] = []

    def hosts(self, count: int, python: str = sys.executable) -> list[Host]:
        """The first `count` hosts, made if need be."""
        while len(self._hosts) < count:
            self._hosts.append(Host(self._folder / f"host-{len(self._hosts)}", python, self._program))
        return self._hosts[:count]

    def prepare(
        self,
        code: str,
        *arguments: str,
        nproc: Sequence[int] = (1,),
        torchrun: bool = False,
        torch: str | None = None,
        grace: float = 10.0,
        env: Mapping[str, str] | None = None,
        secret: Mapping[str, str] | None = None,
        setup: Sequence[str] = (),
        python: str = sys.executable,
        spares: int = 0,
        away: int = 0,
        options: str = "",
        notify: Mapping[str, str] | None = None,
        name: str | None = None,
        launcher: str = "direct",
        own_launchers: str = "{}",
        command: Sequence[str] = ("-c",),
        tie: float | None = None,
    ) -> tuple[Run, dict[str, Any]]:
        """Prepare a run of `python -u -c CODE ARGUMENTS` everywhere; also returns what its start needs.

        `command`: in place of -c. CODE may be the path of a script, then, or the name of a module.
        `torchrun`: by the stand-in for it, or, where `torch` is the version that `python` has, by the real one.
        `spares`: so many hosts, the last ones, are spares. `away`: so many, the last ones, are unreachable.
        `options`: more keys of `run`.
        """
        hosts = self.hosts(len(nproc) - away, python)
        text = "hosts:\n"
        for number, count in enumerate(nproc):
            text += (
                f"- {{name: host-{number}, address: 127.0.0.1, cluster_address: 127.0.0.1, interface: lo, gpus: none, "
                f"nproc_per_node: {count}, python: {python}, setup: {list(setup)}, workdir: {self._workdir}, "
                f"spare: {str(number >= len(nproc) - spares).lower()}}}\n"
            )
        text += f"launchers: {own_launchers}\nrun: {{grace: {grace}, launcher: {launcher}, {options}}}\n"
        run_id = new_run_id()
        wanted = plan.make(
            model.parse(text, "inventory.yaml"),
            run_id=run_id,
            name=name or run_id,
            command=("-u", *command, code, *arguments),
            code=None,
            env=dict(env or {}),
            debug=False,
        )
        if away:
            smaller = plan.without(wanted, [f"host-{number}" for number in range(len(hosts), len(nproc))])
            assert smaller is not None
            wanted = smaller
        if torchrun:
            agent = launchers.TORCHRUN_STATIC if torch else launchers.Launcher("torchrun", AGENT)
            wanted = replace(wanted, launcher=agent)
        wanted = replace(wanted, tie=tie)
        facts = dict.fromkeys(
            (node.host.name for node in wanted.nodes), decoded(host_facts.facts(python={**PYTHON, "torch": torch}))
        )
        run = Run(run_id, hosts)
        self._started.append(run)
        at_head: dict[str, Any] | None = None
        for number, host in enumerate(hosts):
            spec = node_spec.spec(wanted, number, facts, created_at="2026-01-01T00:00:00Z", by="the test")
            private = node_spec.private(wanted, number, run_key=run.key, secrets=dict(secret or {}))
            private["notify"] = dict(notify or {})
            answer = host.session.request("prepare", {"spec": spec, "private": private, "head": at_head})
            at_head = at_head or answer
        assert at_head is not None
        at = "127.0.0.1"
        return run, {"master_addr": at, "master_port": at_head["rdzv_port"], "link_addresses": [at]}

    def start(self, code: str, *arguments: str, **options: Any) -> Run:
        run, start = self.prepare(code, *arguments, **options)
        run.hosts[0].session.request("start", {"run_id": run.run_id, "start": start})
        return run

    def close(self) -> None:
        for run in self._started:
            for host in run.hosts:
                for folder in host.state.glob(f"*/runs/{run.run_id}"):
                    _end(run.run_id, folder)
        for host in self._hosts:
            host.session.close()
            for record in host.state.glob("*/warm/*/warm.json"):
                processes.send(processes.Process(*(state.read(str(record)) or {})["keeper"]), signal.SIGKILL)


def _end(run_id: str, folder: Path) -> None:
    found = state.read(str(folder / "state.json"))
    if found is not None and found["guard"] is not None:
        guard = processes.Process(*found["guard"])
        if processes.alive(guard):
            below = processes.descendants(guard.pid)
            processes.send(guard, signal.SIGSTOP)  # so that it restarts nothing
            processes.send_all(below, signal.SIGKILL)
            processes.send(guard, signal.SIGKILL)
            wait_until(lambda: not processes.alive(guard), 5.0, "a killed guard is gone")
    sweep.sweep(run_id, str(folder))


@contextlib.contextmanager
def local_runs(folder: Path, program: NodeProgram | None = None, workdir: Path | None = None) -> Iterator[Runs]:
    found = Runs(folder, program, workdir)
    try:
        yield found
    finally:
        found.close()
