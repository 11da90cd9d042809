"""The command line: what is asked becomes a call, errors become exit codes. Decides nothing else.

Imports are inside the commands: `ddp-orch --help` must not wait for SSH.
"""

from __future__ import annotations

import gc
import io
import shlex
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from . import __version__, deprecated
from .commands import completion
from .commands import hints as slips
from .errors import Interrupted, OrchError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

RUN = click.argument("run", required=False, shell_complete=completion.run)
INVENTORY_OF_RUN = click.option(
    "-i",
    "--inventory",
    "inventory",
    type=click.Path(),
    metavar="FILE",
    help="The inventory. Default: the one RUN was started with; without RUN $DDP_ORCH_INVENTORY, ./inventory.yaml, "
    "the newest run's.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
HOSTS = click.option(
    "--hosts",
    metavar="PATTERN",
    shell_complete=completion.host,
    help="Only these hosts of the inventory, such as gpu[01-04]; '!gpu02': all but that one.",
)


def inventory(function: F) -> F:
    """INVENTORY, or `-i FILE`: `Command` makes one parameter of the two."""
    return _inventory(function, "$DDP_ORCH_INVENTORY, or ./inventory.yaml")


def inventory_of_any_run(function: F) -> F:
    """As `inventory`, for a command that without one takes the newest run's."""
    return _inventory(function, "$DDP_ORCH_INVENTORY, ./inventory.yaml, or the newest run's")


def _inventory(function: F, default: str) -> F:
    argument = click.argument("inventory", required=False, type=click.Path(), metavar="[INVENTORY]")
    option = click.option(
        "-i",
        "--inventory",
        "inventory_option",
        type=click.Path(),
        metavar="FILE",
        help=f"The inventory, as INVENTORY; default {default}.",
    )
    return argument(option(function))


class OutputClosed(Exception):
    """Nobody reads stdout any more, as after `| head`."""


class Command(click.Command):
    """A command whose inventory may be given in two ways."""

    def parse_args(self, context: click.Context, argv: list[str]) -> list[str]:
        rest = super().parse_args(context, argv)
        option = context.params.pop("inventory_option", None)
        if (notices := deprecated.replace_old(context)) and not context.resilient_parsing:
            from .commands.context import warn_once

            for notice in notices:
                warn_once(notice)
        if not context.resilient_parsing and (said := slips.misplaced(context, option)) is not None:
            raise UsageError(said)
        if option is not None:
            context.params["inventory"] = option
        return rest


class CommandWithArgs(Command):
    """A command that takes what follows `--` as it is, for its last parameter. Words before `--` may belong to it too,
    where INVENTORY is the first of them."""

    def parse_args(self, context: click.Context, argv: list[str]) -> list[str]:
        end = argv.index("--") if "--" in argv else len(argv)
        rest = super().parse_args(context, argv[:end])
        name = str(next(param.name for param in self.params if param.nargs == -1))
        context.params[name] = (*(context.params.get(name) or ()), *argv[end + 1 :])
        return rest


class Program(click.Group):
    command_class = Command

    def parse_args(self, context: click.Context, argv: list[str]) -> list[str]:
        context.meta[slips.ARGV] = tuple(argv)
        if not argv and not context.resilient_parsing:
            click.echo(context.get_help(), err=True)
            sys.exit(UsageError.exit_code)
        return super().parse_args(context, argv)

    def resolve_command(
        self, context: click.Context, argv: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (said := slips.elsewhere(argv)) is not None and not context.resilient_parsing:
            raise UsageError(said)
        return super().resolve_command(context, argv)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            raise OutputClosed from error  # click would make it an exit code of its own


class Grace(click.FloatRange):
    """Seconds as in an inventory's `grace`: no nan, which is in no range and out of none."""

    def __init__(self) -> None:
        super().__init__(0, 86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return seconds if seconds == seconds else self.fail(f"{value} is no number of seconds", param, ctx)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="ddp-orch")
def cli() -> None:
    """Launch PyTorch distributed training on many machines over plain SSH.

    A run belongs to its hosts: this program starts it, looks at it and commands it, and may go at any time.
    """


@cli.command(short_help="write a first inventory")
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@click.option("-o", "--output", default="inventory.yaml", show_default=True, metavar="FILE", help="Where to write it.")
def init(hosts: tuple[str, ...], output: str) -> None:
    """Write an inventory: of HOSTs ([user@]name, or a range such as gpu[01-16]), or chosen from ~/.ssh/config."""
    from .commands import init as initial

    sys.exit(initial.init(hosts, output))


@cli.command(short_help="accept all hosts' keys with one yes")
@inventory
@click.option("--yes", is_flag=True, help="Add the unknown keys without a question.")
@HOSTS
def trust(inventory: str | None, yes: bool, hosts: str | None) -> None:
    """Show the key fingerprints of all hosts and jump hosts; one yes adds the unknown ones to known_hosts.

    Compare them with what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says on the host. A key that differs from
    the one on file is never added.
    """
    from .commands import trust as trusting

    sys.exit(trusting.trust(inventory, hosts, yes))


@cli.command(short_help="the inventory as understood")
@inventory
@JSON
def config(inventory: str | None, as_json: bool) -> None:
    """Print the inventory as understood, every default filled in."""
    import json

    from .commands.context import chosen_inventory
    from .inventory import model as inventories

    read = chosen_inventory(inventory)
    click.echo(json.dumps(inventories.as_dict(read), indent=2) if as_json else inventories.render(read), nl=as_json)


@cli.command(short_help="find what would break a run, and how to mend it")
@inventory
@click.option("--quick", is_flag=True, help="Only what each host knows by itself, as `up` does.")
@click.option("--deep", is_flag=True, help="Also a real rendezvous, collectives and a matrix product, with torch.")
@HOSTS
@JSON
def check(inventory: str | None, quick: bool, deep: bool, hosts: str | None, as_json: bool) -> None:
    """Find what would break a run on these hosts, and say how to mend it; starts nothing."""
    from .commands import check as checking

    if quick and deep:
        raise UsageError("--quick and --deep exclude each other")
    sys.exit(checking.check(inventory, hosts, "quick" if quick else "deep" if deep else "usual", as_json))


@cli.command(short_help="a venv with torch on every host, without root")
@inventory
@click.option("--torch", metavar="VERSION", help="The torch to have everywhere; default: what the head has or gets.")
@click.option("--index-url", metavar="URL", help="Where pip finds it, such as https://download.pytorch.org/whl/cu126.")
@click.option("--wheels", metavar="DIR", help="Install from this folder of wheels on every host, without an index.")
@HOSTS
def setup(
    inventory: str | None, torch: str | None, index_url: str | None, wheels: str | None, hosts: str | None
) -> None:
    """Make hosts ready without root: where torch is missing, a venv with the same one on each."""
    from .commands import setup as prepare_hosts

    sys.exit(prepare_hosts.setup(inventory, hosts, prepare_hosts.Wanted(torch, index_url, wheels)))


@cli.command(cls=CommandWithArgs, short_help="train")
@inventory
@click.argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]", shell_complete=completion.script
)
@click.option(
    "-d", "--detach", is_flag=True, help="Return when the run has started; its id is the first line on stdout."
)
@click.option("--dry-run", is_flag=True, help="Print what would be started where, and touch no host.")
@JSON
@click.option("--name", help="A name for the run and its output folder; that of an ended run resumes there.")
@click.option("--skip-check", is_flag=True, help="Start even where a check found an error.")
@HOSTS
@click.option("--wait", is_flag=True, help="Wait while GPUs or the name are held by another run.")
@click.option("--debug", is_flag=True, help="NCCL and torch say much more.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="An environment variable for the ranks.")
def up(**options: Any) -> None:
    """Train: start SCRIPT with its arguments (after --) on all hosts; the bundled trainer without one.

    What follows -- and begins with -- goes to the inventory's run.script or the bundled trainer, such as: -- --epochs 3
    (-- --help: the bundled trainer's flags).
    """
    from .commands import up as launching

    sys.exit(launching.up(launching.Up(**options)))


@cli.command(short_help="what the ranks printed, all hosts in one stream")
@RUN
@INVENTORY_OF_RUN
@click.option(
    "--host",
    multiple=True,
    metavar="PATTERN",
    shell_complete=completion.host,
    help="Only these hosts, such as gpu[01-04] or '!gpu02' (all but gpu02). Repeatable.",
)
@click.option("--hosts", cls=deprecated.OldOption, now="--host", multiple=True, shell_complete=completion.host)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over; ends with its exit code.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each stream.")
@click.option("--rank", metavar="LIST", help="Only these ranks, such as 0,4-7.")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "agent"]), help="Only this stream.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="Only this attempt.")
@click.option("--since", metavar="T", help="Only lines from then on: 5m (ago), or 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="T", help="Only lines up to then.")
@click.option("--grep", metavar="RE", help="Only lines in which the regular expression is found.")
@click.option("--timestamps", is_flag=True, help="The time of each line, UTC.")
@click.option("--fold", is_flag=True, help="Equal lines of several ranks once, numbers that differ as a range.")
@click.option("-o", "--output", type=click.Path(), metavar="DIR", help="Into files: one a rank and stream, and merged.")
@JSON
def logs(**options: Any) -> None:
    """Show what the ranks of RUN (default: the newest) printed, all hosts in one stream, in the order of time.

    Lines of a host that is silent for 2 s follow when it answers; -o waits for all hosts.
    """
    from .commands import logs as show_logs

    sys.exit(show_logs.logs(show_logs.Logs(**options)))


@cli.command(short_help="runs on these hosts, wherever they were started from")
@inventory_of_any_run
@HOSTS
@click.option("--all", "everything", is_flag=True, help="Also the runs that are over.")
@JSON
def ps(inventory: str | None, hosts: str | None, everything: bool, as_json: bool) -> None:
    """List the runs on the inventory's hosts, from whichever machine they were started.

    They are those of the user that you are on the hosts.
    """
    from .commands import ps as listing

    sys.exit(listing.ps(inventory, hosts, everything, as_json))


@cli.command(short_help="a live board of a run")
@RUN
@INVENTORY_OF_RUN
@HOSTS
def top(run: str | None, inventory: str | None, hosts: str | None) -> None:
    """A live board of RUN: each host's ranks, step, loss, GPUs, CPU, network, last line.

    Default: the newest run that goes on, else the newest. In a pipe: one table, as plain text.
    """
    from .commands import top as board

    sys.exit(board.top(run, inventory, hosts))


@cli.command(short_help="all that is known of a run, in one HTML file")
@RUN
@INVENTORY_OF_RUN
@HOSTS
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE.html", help="Where to; default RUN.html, and RUN.json."
)
@JSON
def report(run: str | None, inventory: str | None, hosts: str | None, output: str | None, as_json: bool) -> None:
    """All that is known of RUN (default: the newest) in one HTML file.

    The plan, the hosts, the timeline, curves of training and machines, the first failure.
    """
    from .commands import report as reports

    sys.exit(reports.report(run, inventory, hosts, output, as_json))


@cli.command(short_help="end a run, and prove that nothing of it is left")
@RUN
@INVENTORY_OF_RUN
@HOSTS
@click.option(
    "--leftovers",
    is_flag=True,
    help="Clean up processes left over from finished runs; leave running runs alone.",
)
@click.option("--stale", cls=deprecated.OldOption, now="--leftovers", is_flag=True)
@click.option("--all", "everything", is_flag=True, help="Every run of ours on these hosts.")
@click.option("--grace", type=Grace(), metavar="S", help="Seconds between SIGTERM and SIGKILL; default the run's own.")
@click.option(
    "--force", multiple=True, metavar="HOST:PID", help="End this process too, whoever it belongs to; alone: only it."
)
@JSON
def kill(run: str | None, inventory: str | None, hosts: str | None, **options: Any) -> None:
    """End RUN (default: the newest unfinished, and all leftovers), and prove that nothing of it is left."""
    from .commands import kill as ending

    sys.exit(ending.kill(run, inventory, hosts, **options))


@cli.command(short_help="the first cause of a failure")
@click.argument("run", nargs=-1, metavar="[RUN]", shell_complete=completion.run)
@click.option(
    "--log", "log", multiple=True, metavar="FILE...", help="Look at log files instead, of any run; - is stdin."
)
@INVENTORY_OF_RUN
@HOSTS
@JSON
def diagnose(
    run: tuple[str, ...], log: tuple[str, ...], inventory: str | None, hosts: str | None, as_json: bool
) -> None:
    """Name the first cause of a failure of RUN (default: the newest): where, what shows it, how to mend it.

    After 2 s it prints what the hosts that answered show. If a late answer changes that, it says so and prints it anew.
    """
    if log:
        from .diagnosis import from_logs as diagnose_logs

        sys.exit(diagnose_logs.show(diagnose_logs.of_logs([*log, *run]), as_json))
    if len(run) > 1:
        raise UsageError("one RUN at a time; log files come after --log")
    from .runs import diagnose as diagnose_run

    sys.exit(diagnose_run.show(run[0] if run else None, inventory, hosts, as_json))


@cli.command(short_help="bring the outputs of a run here")
@RUN
@click.argument("pattern", required=False)
@click.option("-o", "--output", metavar="DIR", help="Into DIR/HOST/...; default: a folder called as the run.")
@INVENTORY_OF_RUN
@HOSTS
def fetch(run: str | None, pattern: str | None, output: str | None, inventory: str | None, hosts: str | None) -> None:
    """Bring the outputs of RUN (default: the newest) here.

    That is what its hosts have in $DDP_ORCH_OUTPUT_DIR, and in code/ the files that the run wrote to relative paths; or
    what of it matches PATTERN. In a PATTERN, such as '*.pt' or 'logs/**/*.json', * is within a name and ** for any
    folders; a folder's name takes all below it. Links are left out. Files that have not changed since they were fetched
    are not fetched again.
    """
    from .commands import fetch as fetching

    sys.exit(fetching.fetch(run, pattern, output, inventory, hosts))


@cli.command(short_help="remove old runs from the hosts")
@inventory
@HOSTS
@click.option("--force", is_flag=True, help="Remove also runs with files that were not fetched.")
@click.option("--outputs", is_flag=True, help="Delete outputs instead: those of runs without a name, after a question.")
@click.option(
    "--run",
    "named",
    multiple=True,
    metavar="RUN",
    help="Delete only the outputs of this run (with --outputs), by its name or id.",
)
@click.option("--yes", is_flag=True, help="Skip the question of --outputs.")
def prune(
    inventory: str | None, hosts: str | None, force: bool, outputs: bool, named: tuple[str, ...], yes: bool
) -> None:
    """Remove from the hosts at once what run.keep does not keep: runs that are over, and code that none has used since.

    Running runs are not touched. Outputs are kept unless --outputs is given, or run.keep.outputs limits their age.
    A run that wrote files outside $DDP_ORCH_OUTPUT_DIR is kept until `fetch` has brought them.
    """
    from .commands import prune as pruning

    if outputs and force:
        raise UsageError("--force is for records of runs; --outputs deletes outputs")
    if (named or yes) and not outputs:
        raise UsageError("--run and --yes go with --outputs")
    if outputs:
        sys.exit(pruning.prune_outputs(inventory, hosts, named, yes=yes))
    sys.exit(pruning.prune(inventory, hosts, force=force))


@cli.command(short_help="try the notifications")
@inventory
@click.option("--test", is_flag=True, help="Send a message now.")
def notify(inventory: str | None, test: bool) -> None:
    """Have the head send a message to notify.webhook and notify.command, as at the end of a run."""
    from .commands import notify as notifications

    if not test:
        words = ("notify", *(() if inventory is None else (inventory,)), "--test")
        raise UsageError(f"to send a message now: {shlex.join(['ddp-orch', *words])}")
    sys.exit(notifications.test(inventory))


@cli.command("exec", cls=CommandWithArgs, short_help="a command on every host, equal output folded")
@inventory
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@HOSTS
@click.option("--setup", is_flag=True, help="Inside each host's `setup`, as a run's ranks are.")
@JSON
def exec_(inventory: str | None, command: tuple[str, ...], hosts: str | None, setup: bool, as_json: bool) -> None:
    """Run CMD (after --) on every host: equal output is shown once; ends with the worst exit code.

    One word is handed to the login shell as it is; several are an argv, and arrive as such. Ctrl-C ends CMD on all
    hosts. Of a host's output the first 16 MiB are kept.
    """
    from .commands import exec as execute

    if not command:
        raise UsageError(slips.no_command(inventory))
    sys.exit(execute.execute(inventory, command, hosts, setup, as_json))


@cli.command(cls=CommandWithArgs, short_help="what more hosts bring")
@inventory
@click.argument("trainer_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- TRAINER ARGS...]")
@click.option("--counts", metavar="LIST", help="Numbers of hosts, such as 1,2,4; default 1, 2, 4, ... and all.")
@click.option("--batch-per-host", type=click.IntRange(1), metavar="N", help="Samples a step of a host; default 128.")
@click.option("--strong-scaling", is_flag=True, help="Keep the total batch the same for any number of hosts.")
@click.option("--fixed", cls=deprecated.OldOption, now="--strong-scaling", is_flag=True)
@click.option("--plot", type=click.Path(), default="bench.png", show_default=True, help="Where the plot goes.")
@JSON
def bench(**options: Any) -> None:
    """Measure the bundled trainer on 1, 2, 4, ... hosts: throughput, scaling efficiency, and what limits.

    About a minute for each number of hosts; -- --bench-seconds 10 measures five times as long.
    Flags of the trainer come after --, such as: -- --model resnet50 --data synthetic --precision bf16
    """
    from .commands import bench as benchmark

    sys.exit(benchmark.bench(benchmark.Bench(**options)))


@cli.command(short_help="two hosts on this machine, in a minute")
def demo() -> None:
    """Train the bundled model on two hosts of this machine, over real SSH, in less than a minute."""
    from .demo import demo as demonstration

    sys.exit(demonstration.main())


@cli.command("help", short_help="show the help of a command")
@click.argument("name", required=False, metavar="[COMMAND]")
@click.pass_context
def help_(context: click.Context, name: str | None) -> None:
    """Show the help of COMMAND, or the list of commands."""
    program = context.find_root()
    command = cli if name is None else cli.resolve_command(program, [name])[1]
    assert command is not None  # else resolve_command has raised
    click.echo(command.get_help(program if name is None else click.Context(command, program, info_name=name)))


@cli.command(short_help="show the version")
def version() -> None:
    """Show the version of ddp-orch."""
    click.echo(f"ddp-orch, version {__version__}")


def main() -> None:
    """The program. Every way out has its exit code (orchestrator/errors.py)."""
    # Python looks for garbage after every 700 objects, and at the end in all that there is: a tenth of a short command.
    gc.set_threshold(100_000, 50, 50)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's `ddp-orch up ... &`, to be stopped by kill -INT
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale that lacks a character must not end a command
            stream.reconfigure(errors="backslashreplace")
    code = guarded(lambda: cli(prog_name="ddp-orch", standalone_mode=False))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _hush_stdout()
    gc.freeze()
    sys.exit(code)


def guarded(work: Callable[[], Any]) -> int:
    """The exit code of `work`, after saying what went wrong."""
    import os

    from .output.console import Console, wants_colour

    console = Console(sys.stderr, wants_colour(sys.stderr, os.environ))
    try:
        work()
    except click.ClickException as error:
        hint = slips.hint(error)  # first: it takes away what the message offers in vain
        said = error.format_message().rstrip(".")
        console.error(f"{said}{_usage(error)}" if hint is None else f"{said}; {hint}")
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        console.error("interrupted")
        return Interrupted.exit_code
    except OrchError as error:
        console.error(str(error))
        return error.exit_code
    except OutputClosed:
        _hush_stdout()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception:  # noqa: BLE001  the last resort, so that a bug has its own exit code
        import traceback

        console.error("this is a bug in ddp-orch; please report it with what follows")
        traceback.print_exc()
        return OrchError.exit_code
    return 0


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return "" if context is None else f"\n  {context.get_usage()}\n  More: {context.command_path} --help"


def _hush_stdout() -> None:
    from .output.console import hush

    hush(sys.stdout)


if __name__ == "__main__":
    main()
