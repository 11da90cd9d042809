"""The commands, each as one function from what was asked to an exit code. Called by cli.py only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import history, inventory, launch, plan, runs, ship
from . import logs as lines
from .console import Console, fold, fold_messages, wants_colour
from .errors import HeldError, UnreachableError, UsageError
from .fleet import Fleet, reasons
from .inventory import Host, Inventory
from .inventory_values import env_name
from .logs import Line, Mask, Painter
from .plan import Plan
from .ssh import Dialer, quote
from .view import Choice, Source, View

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
OUTCOMES = {"succeeded": 0, "failed": 1, "lost": 4, "killed": 130}
HELD_AGAIN = 10.0  # s between tries of `up --wait`
EXEC_WINDOW = 30.0  # s for a host to start a command


@dataclass(frozen=True, kw_only=True)
class Up:
    """`up` as it was asked for."""

    inventory: str
    script: tuple[str, ...]
    detach: bool
    dry_run: bool
    as_json: bool
    name: str | None
    skip_check: bool
    hosts: str | None
    wait: bool
    debug: bool
    env: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Logs:
    """`logs` as it was asked for."""

    run: str | None
    inventory: str | None
    hosts: str | None
    follow: bool
    tail: int | None
    host: str | None
    rank: str | None
    stream: str | None
    attempt: int | None
    timestamps: bool
    as_json: bool


# --- what all commands need


def _console() -> Console:
    return Console(sys.stderr, wants_colour(sys.stderr, os.environ))


def _inventory(given: str | None, hosts: str | None) -> Inventory:
    """The inventory to use; where none is given: $DDP_ORCH_INVENTORY, ./inventory.yaml, the newest run's."""
    path = (
        given or os.environ.get("DDP_ORCH_INVENTORY") or ("inventory.yaml" if Path("inventory.yaml").exists() else None)
    )
    path = path or history.newest_inventory()
    if path is None:
        raise UsageError("no inventory: give -i FILE, set DDP_ORCH_INVENTORY, or go to a folder with an inventory.yaml")
    read = inventory.load(path)
    return inventory.select(read, hosts) if hosts else read


@contextlib.contextmanager
def _fleet(of: Inventory) -> Iterator[Fleet]:
    config = os.environ.get("DDP_ORCH_SSH_CONFIG")
    dialer = Dialer(
        of.ssh,
        ask_passphrase=_ask_passphrase if sys.stdin.isatty() else None,
        config_file=Path(config) if config else None,
    )
    fleet = Fleet(dialer, ship.node_program(), of.ssh.parallel, lambda: secrets.token_hex(12))
    try:
        yield fleet
    finally:
        fleet.close()


def _ask_passphrase(prompt: str) -> str:
    import click

    answer: str = click.prompt(prompt.rstrip(": "), hide_input=True, err=True)
    return answer


def _me() -> str:
    import getpass

    return f"{getpass.getuser()}@{socket.gethostname()}"


def _now() -> str:
    return lines.rfc3339(time.time())


# --- up


def up(wanted: Up) -> int:
    console = _console()
    read = _inventory(wanted.inventory, wanted.hosts)
    run_id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    made, snapshot = _plan(read, wanted, run_id)
    if wanted.dry_run:
        sys.stdout.write(json.dumps(plan.as_dict(made), indent=2) + "\n" if wanted.as_json else plan.as_text(made))
        return 0
    for warning in snapshot.warnings if snapshot else ():
        console.warning(warning)
    around = launch.Surroundings(
        created_at=_now(),
        by=_me(),
        secrets=_secrets(read),
        run_key=secrets.token_hex(32),
        skip_check=wanted.skip_check,
        step=console.step,
        warn=console.warning,
    )
    with _fleet(read) as fleet:
        resolved = _launch(made, snapshot, fleet, around, wanted.wait, console)
        history.remember(run_id, read.path)
        if wanted.detach:
            print(json.dumps({"run_id": run_id, "name": made.name}) if wanted.as_json else run_id, flush=True)
            console.note(f"the run has started; follow it with: ddp-orch logs -f {run_id}")
            return 0
        console.step(f"run {run_id} has started")
        return _attend(resolved, fleet, wanted, around, console)


def _launch(
    made: Plan, snapshot: ship.Snapshot | None, fleet: Fleet, around: launch.Surroundings, wait: bool, console: Console
) -> Plan:
    while True:
        try:
            return launch.launch(made, snapshot, fleet, around)
        except HeldError as error:
            if not wait:
                raise
            console.note(f"{error}\n  trying again every {HELD_AGAIN:.0f} s; Ctrl-C gives up")
            time.sleep(HELD_AGAIN)


def _plan(read: Inventory, wanted: Up, run_id: str) -> tuple[Plan, ship.Snapshot | None]:
    if wanted.name is not None and not NAME.fullmatch(wanted.name):
        raise UsageError(
            f"--name {wanted.name!r}: letters, digits, `.`, `_` and `-`, at most 63, beginning with a letter or digit"
        )
    command, snapshot = _code(read, wanted.script)
    code = None
    if snapshot is not None:
        code = plan.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), len(snapshot.files), snapshot.size)
    made = plan.make(
        read,
        run_id=run_id,
        name=wanted.name or run_id,
        command=command,
        code=code,
        env=_env(read, wanted.env),
        debug=wanted.debug,
    )
    return made, snapshot


def _env(read: Inventory, pairs: Sequence[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-e {pair!r}: wants NAME=VALUE")
        env[_env_name(name, read)] = value
    return env


def _env_name(name: str, read: Inventory) -> str:
    try:
        env_name(name)
    except ValueError as error:
        raise UsageError(f"-e {name}: {error}") from error
    if name in read.run.secrets:
        raise UsageError(f"-e {name}: it is one of run.secrets, whose values come from your environment only")
    return name


def _secrets(read: Inventory) -> dict[str, str]:
    missing = [name for name in read.run.secrets if name not in os.environ]
    if missing:
        raise UsageError(
            f"{read.path}: run.secrets: {', '.join(missing)} not set in this environment; "
            "export it, or take it out of run.secrets"
        )
    return {name: os.environ[name] for name in read.run.secrets}


def _code(read: Inventory, given: tuple[str, ...]) -> tuple[tuple[str, ...], ship.Snapshot | None]:
    """What follows the python on the hosts, and what has to be sent for it."""
    in_place = [host for host in plan.order(read) if host.workdir]
    if not given and read.run.script is None:
        package = Path(__file__).parent.parent / "trainer"
        snapshot = ship.snapshot(package / "__main__.py", (str(package),), package.parent)
        # the bundled trainer runs from its own snapshot: a user's trainer.py or workdir does it no harm
        return ("-u", "-m", "trainer", *read.run.args), snapshot
    base = Path.cwd() if given else Path(read.path).resolve().parent
    script, *args = given if given else (str(read.run.script), *read.run.args)
    module = script == "-m"
    if module and not args:
        raise UsageError("-m: wants a module after it")
    if len(in_place) == len(plan.order(read)):
        return ("-u", script, *args), None
    path = _module_file(args[0], base) if module else Path(script)
    snapshot = ship.snapshot(path, read.run.sync, base)
    if snapshot is None:
        others = fold(host.name for host in plan.order(read) if not host.workdir)
        raise UsageError(
            f"{read.path}: run.sync: none, but {others} has no workdir in which {script} could be; "
            "set workdir, or sync: auto"
        )
    if in_place and not module and Path(script).is_absolute():
        raise UsageError(f"{script}: some hosts have a workdir and some do not: give the script relative to it")
    if module or in_place:
        return ("-u", script, *args), snapshot
    return ("-u", os.path.relpath(snapshot.script, snapshot.workdir), *args), snapshot


def _module_file(module: str, base: Path) -> Path:
    path = Path(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__main__.py"):
        if (base / candidate).is_file():
            return candidate
    raise UsageError(f"-m {module}: there is no {path.with_suffix('.py')} or {path / '__main__.py'} below {base}")


# --- watching


def _attend(resolved: Plan, fleet: Fleet, wanted: Up, around: launch.Surroundings, console: Console) -> int:
    """Attached `up`: show the lines; Ctrl-C stops the run, a second one kills it."""
    hosts = [node.host for node in resolved.nodes]
    sources = []
    first_rank = 0
    for node in resolved.nodes:
        nproc = node.nproc if isinstance(node.nproc, int) else 1
        sources.append(Source(node.host, first_rank, nproc))
        first_rank += nproc
    view = View(
        resolved.run_id, sources, Choice(follow=True, tail=None, ranks=None, attempt=None), fleet, console.warning
    )
    shower = _Shower(
        [host.name for host in hosts], wanted.as_json, False, Mask(around.secrets.values()), lambda _: True
    )
    began = time.monotonic()
    with _stopping_on_interrupt(resolved.run_id, hosts, fleet, console):
        view.run(shower.show)
    return _conclude(resolved.run_id, view, time.monotonic() - began, console)


@contextlib.contextmanager
def _stopping_on_interrupt(run_id: str, hosts: Sequence[Host], fleet: Fleet, console: Console) -> Iterator[None]:
    asked = 0

    def stop(*_: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            console.note("stopping the run gracefully; Ctrl-C again kills it")
        grace = None if asked == 1 else 0.0
        # a thread of its own: the view goes on showing what the ranks say while they are being stopped
        work = threading.Thread(
            target=runs.kill,
            args=(fleet, hosts, [run_id]),
            kwargs={"stale": False, "grace": grace, "by": "Ctrl-C"},
            daemon=True,
        )
        work.start()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Shower:
    """Prints lines: tagged for people, or one JSON object each."""

    def __init__(
        self, hosts: Sequence[str], as_json: bool, timestamps: bool, mask: Mask, wanted: Callable[[Line], bool]
    ) -> None:
        painter = Painter(hosts, wants_colour(sys.stdout, os.environ), timestamps, mask)
        self._render = (lambda line: lines.to_json(line, mask)) if as_json else painter.paint
        self._wanted = wanted

    def show(self, batch: Sequence[Line]) -> None:
        text = "".join([self._render(line) + "\n" for line in batch if self._wanted(line)])
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()


def _conclude(run_id: str, view: View, seconds: float, console: Console) -> int:
    """Say how the run ended; its exit code is the run's outcome."""
    parts = {host: outcome["run"] for host, outcome in view.outcomes.items() if outcome.get("run")}
    for line in fold_messages(reasons(view.failed)):
        console.warning(line)
    verdicts = [
        part["verdict"] for part in sorted(parts.values(), key=lambda part: part["node"]) if part.get("verdict")
    ]
    if not verdicts:
        console.error(f"run {run_id}: no host tells how it ended; `ddp-orch ps --all` shows what is known")
        return UnreachableError.exit_code
    verdict = verdicts[0]
    state = verdict["state"]
    if state == "succeeded":
        console.note(f"run {run_id} succeeded after {seconds:.1f} s")
    elif state == "killed":
        console.error(f"run {run_id} was stopped by {verdict.get('stopped_by') or 'somebody'}")
    else:
        console.error(f"run {run_id} {'was lost' if state == 'lost' else 'failed'}: {_first_failure(verdict)}")
    return OUTCOMES.get(state, 1)


def _first_failure(verdict: Mapping[str, Any]) -> str:
    first = verdict.get("first_failure")
    return (
        f"{first['host']}: {first['what']} (the first failure; what came later is its consequence)"
        if first
        else "reason unknown"
    )


def logs(wanted: Logs) -> int:
    console = _console()
    read = _inventory(wanted.inventory, wanted.hosts)
    ranks = lines.parse_ranks(wanted.rank) if wanted.rank is not None else None
    with _fleet(read) as fleet:
        listing = runs.find(fleet, read.hosts)
        for line in fold_messages(reasons(listing.failed)):
            console.warning(line)
        run = runs.choose(listing, wanted.run, unfinished_first=False)
        hosts = {host.name: host for host in (inventory.select(read, wanted.host) if wanted.host else read).hosts}
        sources = [
            Source(hosts[name], part["first_rank"], part["nproc"])
            for name, part in sorted(run.parts.items(), key=lambda item: item[1]["node"])
            if name in hosts
            and (
                ranks is None or any(part["first_rank"] <= rank < part["first_rank"] + part["nproc"] for rank in ranks)
            )
        ]
        view = View(
            run.run_id,
            sources,
            Choice(follow=wanted.follow, tail=wanted.tail, ranks=ranks, attempt=wanted.attempt),
            fleet,
            console.warning,
        )
        secret = Mask(value for name in read.run.secrets if (value := os.environ.get(name)))
        shower = _Shower(
            list(run.parts),
            wanted.as_json,
            wanted.timestamps,
            secret,
            lambda line: wanted.stream in (None, line.stream),
        )
        began = time.monotonic()
        try:
            view.run(shower.show)
        except KeyboardInterrupt:
            return 0  # only the looking ends
        if wanted.follow:
            return _conclude(run.run_id, view, time.monotonic() - began, console)
        for line in fold_messages(reasons(view.failed)):
            console.warning(line)
        return UnreachableError.exit_code if listing.failed or view.failed else 0


# --- ps, kill, exec


def ps(given: str | None, hosts: str | None, everything: bool, as_json: bool) -> int:
    console = _console()
    read = _inventory(given, hosts)
    with _fleet(read) as fleet:
        listing = runs.find(fleet, read.hosts)
    for line in fold_messages(reasons(listing.failed)):
        console.warning(line)
    shown = [run for run in listing.runs if everything or run.unfinished]
    if as_json:
        print(json.dumps([run.as_dict() for run in shown], indent=2))
    elif shown:
        _print_runs(shown)
    else:
        over = len(listing.runs)
        console.note(
            "no unfinished run"
            + (f"; {over} that {'is' if over == 1 else 'are'} over: ddp-orch ps --all" if over else " on these hosts")
        )
    return UnreachableError.exit_code if listing.failed else 0


def _print_runs(shown: Sequence[runs.Run]) -> None:
    from rich.console import Console as Rich
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("RUN", "NAME", "STATE", "ATTEMPT", "STARTED", "HOSTS"):
        table.add_column(column)
    for run in shown:
        hosts = fold(run.parts)
        cells = (
            run.run_id,
            run.name if run.name != run.run_id else "",
            run.state,
            str(run.attempt),
            run.started_at[:19] + "Z",
            hosts,
        )
        table.add_row(*(Text(cell) for cell in cells))  # Text: a name is data, not markup
    Rich(soft_wrap=not sys.stdout.isatty()).print(table)


def kill(
    wanted: str | None,
    given: str | None,
    hosts: str | None,
    *,
    stale: bool,
    everything: bool,
    grace: float | None,
    as_json: bool,
) -> int:
    if stale and (wanted or everything):
        raise UsageError("--stale is about runs that are over: it goes with neither RUN nor --all")
    console = _console()
    read = _inventory(given, hosts)
    with _fleet(read) as fleet:
        if stale:
            chosen = []
        else:
            listing = runs.find(fleet, read.hosts)
            chosen = _to_kill(listing, wanted, everything)
        result = runs.kill(
            fleet, read.hosts, [run.run_id for run in chosen], stale=wanted is None, grace=grace, by=_me()
        )
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    _tell_kill(result, chosen, console)
    if result.failed:
        return UnreachableError.exit_code
    return 1 if result.remaining else 0


def _to_kill(listing: runs.Listing, wanted: str | None, everything: bool) -> list[runs.Run]:
    if wanted is not None:
        return [runs.choose(listing, wanted)]
    unfinished = [run for run in listing.runs if run.unfinished]
    return unfinished if everything else unfinished[-1:]


def _tell_kill(result: runs.Killed, chosen: Sequence[runs.Run], console: Console) -> None:
    for line in fold_messages(reasons(result.failed)):
        console.error(line)
    for one in result.remaining:
        console.error(f"{one['host']}: pid {one['pid']} ({one['cmd']}) of {one['owner']} is still there: {one['why']}")
    what = ", ".join(run.run_id for run in chosen)
    count = len(result.killed)
    if count or chosen:
        where = fold({one["host"] for one in result.killed})
        processes = f"{count} {'process' if count == 1 else 'processes'}"
        console.note(f"ended {what or 'leftovers'}: {processes}{' on ' + where if where else ''}")
    else:
        console.note("nothing to end")


def execute(given: str, command: tuple[str, ...], hosts: str | None, setup: bool, as_json: bool) -> int:
    console = _console()
    read = _inventory(given, hosts)
    with _fleet(read) as fleet:
        fleet.prepare(read.hosts)
        results = fleet.run(read.hosts, lambda host: _exec_line(host, command, setup))
    if as_json:
        print(json.dumps([{"host": host, **one.as_dict()} for host, one in results.done.items()], indent=2))
    else:
        _print_folded({host: one.text() for host, one in results.done.items()})
        for line in fold_messages(
            {host: f"exit code {one.status}" for host, one in results.done.items() if one.status}
        ):
            console.warning(line)
    for line in fold_messages(reasons(results.failed)):
        console.error(line)
    codes = [one.status for one in results.done.values()] + [error.exit_code for error in results.failed.values()]
    return max(codes, default=0)


def _exec_line(host: Host, command: tuple[str, ...], setup: bool) -> str:
    line = command[0] if len(command) == 1 else quote(command)
    if not setup or not host.setup:
        return line
    script = " && ".join(f"{{ {one}\n}}" for one in host.setup)
    return quote(["bash", "-lc", f"{script} && {line if len(command) == 1 else shlex.join(command)}"])


def _print_folded(texts: Mapping[str, str]) -> None:
    """As clush -b: output that several hosts share is shown once."""
    from .terminal import tame

    same: dict[str, list[str]] = {}
    for host, text in texts.items():
        same.setdefault(text, []).append(host)
    for text, names in same.items():
        sys.stdout.write("".join(f"{fold(names)}: {tame(line, colour=False)}\n" for line in text.splitlines()))
    sys.stdout.flush()
