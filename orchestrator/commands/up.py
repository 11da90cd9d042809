"""`up`: start a run on its hosts, and follow it to its end unless --detach is given."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from ..errors import HeldError, OutputError, UsageError
from ..hosts.fleet import Fleet
from ..inventory import advice, model, paths, run_ids, selection, via, writing
from ..inventory.container import is_entered
from ..inventory.model import Host, Inventory
from ..inventory.sources.batch_job import BatchJob
from ..inventory.sources.schedulers import current_scheduler
from ..output.console import Console
from ..output.lines import Mask
from ..output.pipeline import Pipeline, Stage
from ..output.terminal import tame
from ..plan import accelerate, accelerate_ranks, description, entrypoint, frozen, import_roots, invocation, losses
from ..plan import snapshot as ship
from ..plan.launchers import OLD_LAUNCH, OLD_LOCAL_RANK, for_own_scripts
from ..plan.other_command import OtherCommand
from ..plan.plan import Code, Plan, advise_secrets, advise_shell_variables, check_size, describe_unused, world_size
from ..plan.plan import make as make_plan
from ..runs import attach, finishing, gpu_use, holding, launch, printing, queueing, recent
from ..runs.timing import FirstLine, FirstLines
from . import in_job, variables
from .context import (
    describe_unmasked,
    load_inventory,
    open_fleet,
    stderr_console,
    unset_secrets,
    warn_once,
    whoami,
)
from .up_options import UpOptions

LARGEST_SHOWN = 3  # largest entries of the code, shown if it is large
RETRY_INTERVAL = 10.0  # s between tries of `up --wait`


class Watch:
    """What `up --watch` looks at while a run is running. This one looks at nothing."""

    def begin(self, snapshot: ship.Snapshot | None, run_name: str) -> None:
        """The code was read for a run."""

    def stop_run_on_change(
        self, run_id: str, hosts: Sequence[Host], fleet: Fleet
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


BeforeStart = Callable[[Plan, "ship.Snapshot | None", launch.LaunchContext], Callable[[], None] | None]


def up(
    options: UpOptions,
    printer: Stage | None = None,
    watch: Watch | None = None,
    before_start: BeforeStart | None = None,
    *,
    is_measurement: bool = False,
) -> int:
    """`printer`: takes the lines of an attached run. By default, they are printed. `is_measurement`: as in a launch.

    `before_start`: called when all is known that this machine can know about the run, before any host is asked. If it
    keeps a place before all queued runs, it returns what gives that place back.
    """
    watch = watch or Watch()
    console = stderr_console()
    if options.inventory is None and (code := _offer_inventory()):
        return code
    inventory = _load_inventory(options)
    job = in_job.find_job(inventory, detach=options.detach, requeue=options.requeue)
    run_id = run_ids.new_run_id()
    console.status("reading the code")
    try:
        plan, snapshot = _plan_run(inventory, options, run_id, job)
    except OtherCommand as error:
        raise UsageError(error.with_command(options.correct(error).command(inventory.path))) from None
    finally:
        console.status("")
    watch.begin(snapshot, plan.name)
    for note in (*describe_unused(plan), *losses.note_snapshots(plan), *(snapshot.notes if snapshot else ())):
        console.note(note)
    overridden = variables.warn_of_host_values(plan, options.settings)
    warnings = (*overridden, *losses.warn_of_election(plan), *advise_shell_variables(plan), *advise_secrets(plan))
    for warning in (*warnings, *(snapshot.warnings if snapshot else ())):
        warn_once(warning)
    if options.dry_run:
        if unset := unset_secrets(inventory):
            console.warning(f"run.secrets: not set in this environment: {', '.join(unset)}. `up` would refuse to start")
        text = json.dumps(description.as_dict(plan), indent=2) + "\n" if options.as_json else description.as_text(plan)
        sys.stdout.write(tame(text, colour=False))
        return 0
    secrets_of_run = _read_secrets(inventory)
    for warning in describe_unmasked(run_id, secrets_of_run):
        console.warning(warning)
    context = launch.LaunchContext(
        by=whoami(),
        secrets=secrets_of_run,
        run_key=secrets.token_bytes(32),
        skip_check=options.skip_check,
        continues=options.continues,
        is_measurement=is_measurement,
        step=_without_repeats(console.step),
        warn=_without_repeats(console.warning),
        job_ends_at=in_job.find_end(job, inventory, tied=plan.tie is not None, console=console) if job else None,
        command_without=lambda hosts: (
            options.command_to_restart(options.continues, inventory.path, without=hosts)
            if options.continues
            else options.command(inventory.path, without=hosts)
        ),
        command_to_continue=lambda run: options.command_to_restart(run, inventory.path),
    )
    give_place_back = before_start(plan, snapshot, context) if before_start else None
    with open_fleet(inventory) as fleet:
        resolved = _launch(plan, snapshot, fleet, context, options, console, first=give_place_back is not None)
        if give_place_back:
            give_place_back()
        about = advice.AboutRun(advice.reference_to(run_id, plan.name), advice.reference_of(inventory))
        hosts = [node.host for node in resolved.nodes]
        detached = in_job.describe_detached(hosts, resolved.tie, about.command("logs", "-f"))
        try:
            copy = writing.render(paths.with_absolute_paths(inventory)) if inventory.source else None
            folder = str(paths.folder(inventory))
            recent.remember(inventory.path, run_id, plan.name, _code_folder(snapshot), folder, copy)
            any_of = inventory.any_of is not None
            recent.remember_command(run_id, asdict(replace(options, continues=None)), any_of=any_of)
            if options.detach:
                if options.timing:
                    console.note(context.timing.describe())
                print(json.dumps({"run_id": run_id, "name": plan.name}) if options.as_json else run_id, flush=True)
                console.note(f"the run has started; follow it with: {about.command('logs', '-f')}")
                return 0
            took = f"{context.timing.until_start:.1f} s ({context.timing.summarize('prepare', 'start')})"
            console.step(f"run {run_id} has started after {took}")
            if sys.stdout.isatty() and options.show_outputs:  # else its hosts end with this program
                console.note(in_job.describe_closing(hosts, os.environ, about.command("logs", "-f")))
                if options.watch:
                    console.note("the code is watched only while this terminal is open")
            with watch.stop_run_on_change(run_id, hosts, fleet), in_job.note_at_end(detached, console):
                finisher = finishing.Finisher(run_id, hosts, fleet, console)
                code = _follow(resolved, inventory, fleet, context, options, about, printer, console, finisher)
            if job is None or not options.requeue:
                return code
            is_ending = finisher.was_told_to_end and isinstance(resolved.inventory.run.walltime, float)
            resume = _command_to_resume(resolved, inventory, options, about)
            return in_job.requeue(job, code, console, resume, is_ending=is_ending)
        except (BrokenPipeError, OutputError, KeyboardInterrupt):
            console.note(detached)
            raise


def _follow(
    resolved: Plan,
    inventory: Inventory,
    fleet: Fleet,
    context: launch.LaunchContext,
    options: UpOptions,
    about: advice.AboutRun,
    printer: Stage | None,
    console: Console,
    finisher: finishing.Finisher,
) -> int:
    """Show the run until it ends, and return its exit code."""
    mask = Mask(context.secrets.values())
    status_line = printing.make_status_line(console, world_size(resolved), time.monotonic())
    stage = printer or printing.make_printer(
        [host.name for host in inventory.machines],
        mask,
        as_json=options.as_json,
        fold_start=world_size(resolved),
        full_output_command=about.command("logs", "--stream", "agent"),
        describe_hidden=printing.describe_hidden(console, about) if options.show_outputs else lambda _: None,
        status_line=status_line,
    )
    if options.timing:
        stage = Pipeline((FirstLines(context.timing, world_size(resolved), console.note), stage))
    stage = Pipeline((FirstLine(context.timing, console.step), stage))
    hosts = [node.host for node in resolved.nodes if not node.host.witness]
    with gpu_use.watch(resolved.run_id, hosts, fleet, status_line.show_gpu_use if status_line else None):
        return attach.attend(
            resolved,
            fleet,
            stage,
            mask,
            console,
            finisher,
            resume=_command_to_resume(resolved, inventory, options, about),
            is_requeued=options.requeue,
            show_outputs=options.show_outputs,
            tell_silence=printer is None and not options.as_json,
        )


def _command_to_resume(resolved: Plan, inventory: Inventory, options: UpOptions, about: advice.AboutRun) -> str:
    """The command that starts the run again from its outputs; "" if the run was not started by `up`."""
    again = options.command(inventory.path, name=resolved.name)
    # `up` would not find what the run saved beside its code. `restart` would not find the hosts of the next job
    is_known = recent.command_of(resolved.run_id) is not None and not inventory.source
    return about.command("restart") if again and is_known else again


def _offer_inventory() -> int:
    """Where there is no inventory, offer to write one. Returns an exit code if that fails."""
    on_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not on_terminal or model.default_path(os.environ) is not None or current_scheduler(os.environ):
        return 0
    if not click.confirm("There is no inventory in this folder. Write one now?", default=True, err=True):
        return 0  # loading it fails with the advice
    from .init import init

    return init((), None, model.DEFAULT)


def _load_inventory(options: UpOptions) -> Inventory:
    inventory = load_inventory(options.inventory, settings=options.settings)
    if any(setting.startswith("run.container") for setting in options.settings):
        entered = next((host.name for host in inventory.hosts if is_entered(host.container)), None)
        if entered is not None:
            raise UsageError(
                f"--set run.container: {entered}: other commands could not find a run in a container; set `enter` in "
                f"the inventory"
            )
    if options.hosts is not None:
        inventory = selection.select(inventory, options.hosts)
    if options.trainer_args:
        inventory = for_own_scripts(inventory)
        args = (*inventory.run.args, *options.trainer_args)
        inventory = replace(inventory, run=replace(inventory.run, script=None, args=args))
    return inventory


def _without_repeats(print_message: Callable[[str], None]) -> Callable[[str], None]:
    """Print each message once, because `up --wait` tries several times."""
    printed: set[str] = set()

    def print_once(message: str) -> None:
        if message not in printed:
            printed.add(message)
            print_message(message)

    return print_once


def _launch(
    plan: Plan,
    snapshot: ship.Snapshot | None,
    fleet: Fleet,
    context: launch.LaunchContext,
    options: UpOptions,
    console: Console,
    *,
    first: bool,
) -> Plan:
    """`first`: see `queueing.launch_in_turn`."""
    wait = options.queue or options.wait
    if options.queue or plan.inventory.any_of is not None:
        with frozen.copied(snapshot) if wait else contextlib.nullcontext(snapshot) as code:
            return queueing.launch_in_turn(plan, code, fleet, context, console.note, wait=wait, first=first)
    patience = math.inf if wait else in_job.PREDECESSOR_WINDOW if plan.tie is not None else 0.0
    if not patience:
        return launch.launch(plan, snapshot, fleet, context)
    with frozen.copied(snapshot) as code:
        return _launch_when_free(plan, code, fleet, context, console, patience)


def _launch_when_free(
    plan: Plan,
    snapshot: ship.Snapshot | None,
    fleet: Fleet,
    context: launch.LaunchContext,
    console: Console,
    patience: float,
) -> Plan:
    """Try again while others hold what the run needs. `patience`: s; infinite for `--wait`."""
    reported = ""
    gives_up_at = time.monotonic() + patience
    while True:
        try:
            return launch.launch(plan, snapshot, fleet, context)
        except HeldError as error:
            if time.monotonic() + RETRY_INTERVAL > gives_up_at:
                raise
            if str(error) != reported:
                reported = str(error)
                again = f"trying again every {RETRY_INTERVAL:.0f} s"
                hint = f"{reported}\n  {again}; press Ctrl-C to give up"
                console.note(hint if math.isinf(patience) else in_job.describe_predecessor(reported, again))
            time.sleep(RETRY_INTERVAL)


def _plan_run(
    inventory: Inventory, options: UpOptions, run_id: str, job: BatchJob | None
) -> tuple[Plan, ship.Snapshot | None]:
    if options.name is not None and not run_ids.RUN_NAME.fullmatch(options.name):
        raise UsageError(
            f"--name {options.name!r} is invalid: expected at most 63 letters, digits, `.`, `_` and `-`, starting with "
            "a letter or digit"
        )
    invoked = invocation.read(options.script, inventory, os.environ)
    for reason, flags in invocation.ignored_by_reason(invoked).items():
        stderr_console().note(f"ignored {', '.join(flags)}: {reason}")
    if invoked.launcher == "mpi" and entrypoint.needs_mpi(invoked.words, Path.cwd()):
        invoked = invocation.with_real_mpi(invoked)
    if invoked.launcher == "accelerate" or inventory.run.launcher == "accelerate":
        invoked = accelerate.complete(replace(invoked, launcher="accelerate"), Path.cwd())
    if unused := accelerate.find_unused(invoked, os.environ, Path.cwd()):
        warn_once(
            f"{unused} has no effect, as hosts do not read this file; copy it into the folder of the script, and start "
            "it with: accelerate launch --config_file FILE"
        )
    invoked = accelerate_ranks.on_cpus(invoked, Path.cwd()) or invoked
    own = accelerate_ranks.of_uneven(inventory, invoked, Path.cwd())
    if own is not None:
        stderr_console().note("the hosts have different numbers of ranks: torchrun starts those of accelerate launch")
        invoked = own
    inventory = invocation.apply(inventory, invoked)
    if invoked.is_program:
        command, snapshot = entrypoint.find_program(inventory, invoked.words)
    elif options.call is None:
        command, snapshot = entrypoint.find(inventory, invoked.words)
    else:
        command, snapshot = entrypoint.find_function(inventory, invoked.words, options.call)
    settings = options.settings if options.continues is None else ()  # `restart` has made its choice
    code = None
    if snapshot is not None:
        code = Code(
            sha256=snapshot.sha256,
            cwd=snapshot.workdir,
            root=str(snapshot.root),
            files=len(snapshot.files),
            size=snapshot.size,
            largest=snapshot.largest(LARGEST_SHOWN),
            excluded=snapshot.excluded,
            credentials=snapshot.credentials,
            names_torch=snapshot.names_torch,
            commit=snapshot.commit,
        )
    plan = make_plan(
        inventory,
        run_id=run_id,
        name=options.name or (job.name if job and options.requeue else run_id),
        command=command,
        code=code,
        env={**invoked.env, **variables.read(inventory, options.env_file, options.env, settings)},
        debug=options.debug,
    )
    if snapshot is not None and options.call is None:
        warnings = import_roots.warn(snapshot, command, [node.env for node in plan.nodes])
        snapshot = replace(snapshot, warnings=(*snapshot.warnings, *warnings))
    if plan.launcher.name == OLD_LAUNCH and entrypoint.has_old_local_rank(snapshot, module=command[1] == "-m"):
        plan = replace(plan, launcher=replace(plan.launcher, rank_argument=OLD_LOCAL_RANK))
    if (job or via.bound_hosts(inventory.hosts)) and not options.detach:
        plan = replace(plan, tie=holding.LIMIT)
    return plan, snapshot


def _code_folder(snapshot: ship.Snapshot | None) -> str:
    return "" if snapshot is None else str(snapshot.root / snapshot.workdir)


def _read_secrets(inventory: Inventory) -> dict[str, str]:
    if missing := unset_secrets(inventory):
        it = "it" if len(missing) == 1 else "them"
        raise UsageError(
            f"{inventory.path}: run.secrets: not set in this environment: {', '.join(missing)}. "
            f"Export {it}, or remove {it} from run.secrets."
        )
    secrets = {name: os.environ[name] for name in inventory.run.secrets}
    check_size(secrets)
    return secrets
