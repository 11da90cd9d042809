"""`up`: from what was asked for to a run on its hosts, watched to its end or left there."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import HeldError, UsageError
from ..hosts.fleet import Fleet
from ..inventory import advice, model, run_ids
from ..inventory.model import Inventory
from ..inventory.values import env_name, shown
from ..output.console import Console, all_but
from ..output.lines import Mask, rfc3339
from ..output.pipeline import Stage
from ..output.terminal import tame
from ..plan import description, entrypoint, plan
from ..plan import snapshot as ship
from ..plan.plan import Plan
from ..runs import attach, launch, printing, recent
from .context import describe_unmasked, load_inventory, open_fleet, stderr_console, warn_once, whoami

LARGEST = 3  # entries of the code that are named when it is large
HELD_AGAIN = 10.0  # s between tries of `up --wait`


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """`up` as it was asked for."""

    inventory: str | None
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
    show_outputs: bool = True  # how to fetch what the run has written
    trainer_args: tuple[str, ...] = ()  # for the bundled trainer, after run.args; then run.script does not count

    def command(self, inventory: str, *, without: Sequence[str] = (), name: str | None = None) -> str:
        """What a person types to start the same again: without some hosts, or under another name.

        `inventory`: the one that was taken. "" where it was not asked for by `up`.
        """
        if self.trainer_args:
            return ""
        hosts = (self.hosts or "") + (all_but(without) if without else "")
        flags = {
            "--detach": self.detach,
            "--json": self.as_json,
            "--skip-check": self.skip_check,
            "--wait": self.wait,
            "--debug": self.debug,
        }
        words = [flag for flag, given in flags.items() if given]
        for option, value in (("--name", name or self.name), ("--hosts", hosts), *(("-e", pair) for pair in self.env)):
            words += [option, value] if value else []
        return advice.command("up", *words, *(("--", *self.script) if self.script else ()), inventory=inventory)


def up(wanted: UpOptions, printer: Stage | None = None) -> int:
    """`printer`: takes the lines of an attached run; without it they are printed."""
    console = stderr_console()
    read = load_inventory(wanted.inventory)
    if wanted.hosts is not None:
        read = model.select(read, wanted.hosts)
    if wanted.trainer_args:
        read = replace(read, run=replace(read.run, script=None, args=(*read.run.args, *wanted.trainer_args)))
    run_id = run_ids.new_run_id()
    made, snapshot = _plan(read, wanted, run_id)
    for warning in (*plan.advise_shell_variables(made), *(snapshot.warnings if snapshot else ())):
        warn_once(warning)
    if wanted.dry_run:
        text = json.dumps(description.as_dict(made), indent=2) + "\n" if wanted.as_json else description.as_text(made)
        sys.stdout.write(tame(text, colour=False))
        return 0
    secrets_of_run = _secrets(read)
    for warning in describe_unmasked(run_id, secrets_of_run):
        console.warning(warning)
    around = launch.LaunchContext(
        created_at=rfc3339(time.time()),
        by=whoami(),
        secrets=secrets_of_run,
        run_key=secrets.token_bytes(32),
        skip_check=wanted.skip_check,
        step=_once(console.step),
        warn=_once(console.warning),
        command_without=lambda hosts: wanted.command(read.path, without=hosts),
    )
    with open_fleet(read) as fleet:
        resolved = _launch(made, snapshot, fleet, around, wanted.wait, console)
        about = advice.AboutRun(made.name, read.path)
        try:
            recent.remember(read.path, run_id, made.name, _code_folder(snapshot))
            if wanted.detach:
                print(json.dumps({"run_id": run_id, "name": made.name}) if wanted.as_json else run_id, flush=True)
                console.note(f"the run has started; follow it with: {about.command('logs', '-f')}")
                return 0
            console.step(f"run {run_id} has started")
            if sys.stdout.isatty():
                follow = about.command("logs", "-f")
                console.note(f"closing this terminal does not stop the run; Ctrl-C does. To follow it again: {follow}")
            names = [host.name for host in read.hosts]
            mask = Mask(around.secrets.values())
            shown = printer or printing.printer(
                names, mask, as_json=wanted.as_json, all_of_it=about.command("logs", "--stream", "agent")
            )
            return attach.attend(
                resolved,
                fleet,
                shown,
                mask,
                console,
                resume=wanted.command(read.path, name=made.name),
                show_outputs=wanted.show_outputs,
            )
        except (BrokenPipeError, KeyboardInterrupt):
            console.note(f"detached; the run continues. Follow it with: {about.command('logs', '-f')}")
            raise


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """`up --wait` tries again and again, and finds the same."""
    said: set[str] = set()

    def say_once(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    return say_once


def _launch(
    made: Plan, snapshot: ship.Snapshot | None, fleet: Fleet, around: launch.LaunchContext, wait: bool, console: Console
) -> Plan:
    told = ""
    while True:
        try:
            return launch.launch(made, snapshot, fleet, around)
        except HeldError as error:
            if not wait:
                raise
            if str(error) != told:
                told = str(error)
                console.note(f"{told}\n  trying again every {HELD_AGAIN:.0f} s; press Ctrl-C to give up")
            time.sleep(HELD_AGAIN)


def _plan(read: Inventory, wanted: UpOptions, run_id: str) -> tuple[Plan, ship.Snapshot | None]:
    if wanted.name is not None and not run_ids.RUN_NAME.fullmatch(wanted.name):
        raise UsageError(
            f"--name {wanted.name!r} is invalid: expected at most 63 letters, digits, `.`, `_` and `-`, starting with "
            "a letter or digit"
        )
    command, snapshot = entrypoint.find(read, wanted.script)
    code = None
    if snapshot is not None:
        code = plan.Code(
            sha256=snapshot.sha256,
            cwd=snapshot.workdir,
            root=str(snapshot.root),
            files=len(snapshot.files),
            size=snapshot.size,
            largest=snapshot.largest(LARGEST),
            excluded=snapshot.excluded,
            credentials=snapshot.credentials,
        )
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


def _code_folder(snapshot: ship.Snapshot | None) -> str:
    return "" if snapshot is None else str(snapshot.root / snapshot.workdir)


def _env(read: Inventory, pairs: Sequence[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-e {pair!r}: expected NAME=VALUE")
        if not name:
            raise UsageError(f"-e {pair!r}: no name before the =; expected NAME=VALUE")
        env[_env_name(name, read)] = value
    return env


def _env_name(name: str, read: Inventory) -> str:
    try:
        env_name(name)
    except ValueError as error:
        raise UsageError(f"-e {shown(name)}: {error}") from error
    if name in read.run.secrets:
        raise UsageError(f"-e {name}: it is in run.secrets, whose values come only from your environment")
    return name


def _secrets(read: Inventory) -> dict[str, str]:
    missing = [name for name in read.run.secrets if name not in os.environ]
    if missing:
        it = "it" if len(missing) == 1 else "them"
        raise UsageError(
            f"{read.path}: run.secrets: not set in this environment: {', '.join(missing)}. "
            f"Export {it}, or remove {it} from run.secrets."
        )
    secrets = {name: os.environ[name] for name in read.run.secrets}
    plan.check_size(secrets)
    return secrets
