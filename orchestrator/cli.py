"""The command line: what is asked becomes a call, errors become exit codes. Decides nothing else.

Imports are inside the commands: `ddp-orch --help` must not wait for SSH.
"""

from __future__ import annotations

import gc
import io
import shlex
import signal
import sys
from typing import Any

import click

from . import __version__
from .commands import completion, deprecated, hints
from .commands.exit_codes import guarded, hush_stdout
from .commands.options import (
    HOSTS,
    INVENTORY_OF_RUN,
    JSON,
    RUN,
    CommandWithArgs,
    Grace,
    Program,
    inventory,
    inventory_of_any_run,
)
from .errors import UsageError


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="ddp-orch")
def cli() -> None:
    """Launch PyTorch distributed training on many machines over plain SSH.

    Runs live on the hosts. You can close your terminal or shut down your laptop at any time.
    """


@cli.command(short_help="write an inventory")
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@click.option("-o", "--output", default="inventory.yaml", show_default=True, metavar="FILE", help="File to write.")
def init(hosts: tuple[str, ...], output: str) -> None:
    """Write an inventory of the given HOSTs, or of hosts that you choose from ~/.ssh/config.

    A HOST is a name, user@name, or a range such as gpu[01-16].
    """
    from .commands import init as initial

    sys.exit(initial.init(hosts, output))


@cli.command(short_help="accept the SSH keys of all hosts")
@inventory
@click.option("--yes", is_flag=True, help="Add unknown keys without asking.")
@HOSTS
def trust(inventory: str | None, yes: bool, hosts: str | None) -> None:
    """Show the SSH key fingerprints of all hosts and jump hosts, and add the unknown keys to known_hosts.

    You are asked once for all of them. To verify a fingerprint, run `ssh-keygen -lf
    /etc/ssh/ssh_host_ed25519_key.pub` on the host. Changed keys are never added.
    """
    from .commands import trust as trusting

    sys.exit(trusting.trust(inventory, hosts, yes))


@cli.command(short_help="show the inventory with all defaults")
@inventory
@JSON
def config(inventory: str | None, as_json: bool) -> None:
    """Print the inventory as ddp-orch reads it, with every default filled in."""
    import json

    from .commands.context import chosen_inventory
    from .inventory import model as inventories

    read = chosen_inventory(inventory)
    click.echo(json.dumps(inventories.as_dict(read), indent=2) if as_json else inventories.render(read), nl=as_json)


@cli.command(short_help="find problems before you start a run")
@inventory
@click.option("--quick", is_flag=True, help="Run per-host checks only (what `up` runs); skip the network tests.")
@click.option(
    "--deep",
    is_flag=True,
    help="Also run a real rendezvous, collectives and a matrix product, using the torch of the hosts.",
)
@HOSTS
@JSON
def check(inventory: str | None, quick: bool, deep: bool, hosts: str | None, as_json: bool) -> None:
    """Find problems that would break a run on these hosts, and show a fix for each.

    Changes no settings of the hosts.
    """
    from .commands import check as checking

    if quick and deep:
        raise UsageError("--quick and --deep cannot be combined")
    sys.exit(checking.check(inventory, hosts, "quick" if quick else "deep" if deep else "usual", as_json))


@cli.command(short_help="install torch on hosts that lack it, without root")
@inventory
@click.option("--torch", metavar="VERSION", help="Version to install. Default: that of the head, or the newest.")
@click.option(
    "--index-url", metavar="URL", help="Package index for pip, such as https://download.pytorch.org/whl/cu126."
)
@click.option("--wheels", metavar="DIR", help="Install from this folder of wheels on every host instead of an index.")
@HOSTS
def setup(
    inventory: str | None, torch: str | None, index_url: str | None, wheels: str | None, hosts: str | None
) -> None:
    """Install torch on hosts that lack it: the same version in a venv on each. Needs no root."""
    from .commands import setup as prepare_hosts

    sys.exit(prepare_hosts.setup(inventory, hosts, prepare_hosts.Wanted(torch, index_url, wheels)))


@cli.command(cls=CommandWithArgs, short_help="start a run")
@inventory
@click.argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]", shell_complete=completion.script
)
@click.option("-d", "--detach", is_flag=True, help="Return when the run has started, and print its id.")
@click.option("--dry-run", is_flag=True, help="Print what would run on each host, without connecting.")
@JSON
@click.option(
    "--name", help="Name of the run and of its output folder. With the name of a finished run, resume in its folder."
)
@click.option("--skip-check", is_flag=True, help="Start even if the checks find an error.")
@HOSTS
@click.option("--wait", is_flag=True, help="Wait while another run uses the GPUs or the name.")
@click.option("--debug", is_flag=True, help="Enable verbose NCCL and torch logging.")
@click.option(
    "-e",
    "--env",
    "env",
    multiple=True,
    metavar="K=V",
    help="Set an environment variable for the ranks. Can be repeated.",
)
def up(**options: Any) -> None:
    """Start SCRIPT on all hosts and follow its output. Without SCRIPT, run the bundled trainer.

    Ctrl-C stops the run gracefully; a second Ctrl-C kills it.

    If the arguments after -- start with a flag, they are passed to run.script of the inventory, or to the bundled
    trainer: `ddp-orch up -- --epochs 3`. `ddp-orch up -- --help` lists the flags of the bundled trainer.
    """
    from .commands import up as launching

    sys.exit(launching.up(launching.Up(**options)))


@cli.command(short_help="show the output of a run")
@RUN
@INVENTORY_OF_RUN
@click.option(
    "--host",
    multiple=True,
    metavar="PATTERN",
    shell_complete=completion.host,
    help="Show only these hosts, such as gpu[01-04] or '!gpu02' (all but gpu02). Can be repeated.",
)
@click.option("--hosts", cls=deprecated.OldOption, now="--host", multiple=True, shell_complete=completion.host)
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends, and exit with its exit code.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Show the last N lines of each stream.")
@click.option("--rank", metavar="LIST", help="Show only these ranks, such as 0,4-7.")
@click.option(
    "--stream",
    type=click.Choice(["stdout", "stderr", "agent"]),
    help="Show only this stream; agent is torchrun and ddp-orch.",
)
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="Show only this attempt.")
@click.option("--since", metavar="T", help="Show only lines from this time on: 5m (ago), or 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="T", help="Show only lines up to this time.")
@click.option("--grep", metavar="RE", help="Show only lines that match this regular expression.")
@click.option("--timestamps", is_flag=True, help="Show the time of each line (UTC).")
@click.option("--fold", is_flag=True, help="Show equal lines of several ranks once, with differing numbers as a range.")
@click.option(
    "-o", "--output", type=click.Path(), metavar="DIR", help="Write to files: one per rank and stream, and merged.log."
)
@JSON
def logs(**options: Any) -> None:
    """Show the output of RUN (default: the newest run) from all hosts in one stream, ordered by time.

    Lines of a host that is silent for 2 s appear when it answers. -o waits for all hosts.
    """
    from .commands import logs as show_logs

    sys.exit(show_logs.logs(show_logs.Logs(**options)))


@cli.command(short_help="list runs")
@inventory_of_any_run
@HOSTS
@click.option("--all", "everything", is_flag=True, help="Also list finished runs.")
@JSON
def ps(inventory: str | None, hosts: str | None, everything: bool, as_json: bool) -> None:
    """List your runs on the hosts of the inventory, no matter which machine started them."""
    from .commands import ps as listing

    sys.exit(listing.ps(inventory, hosts, everything, as_json))


@cli.command(short_help="show a live board of a run")
@RUN
@INVENTORY_OF_RUN
@HOSTS
def top(run: str | None, inventory: str | None, hosts: str | None) -> None:
    """Show a live board of RUN: ranks, step, loss, GPUs, CPU and network of each host.

    Default: the newest running run, else the newest run. In a pipe, print one table.
    """
    from .commands import top as board

    sys.exit(board.top(run, inventory, hosts))


@cli.command(short_help="write an HTML report of a run")
@RUN
@INVENTORY_OF_RUN
@HOSTS
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE.html",
    help="File to write. Default: RUN.html. The data go to RUN.json.",
)
@JSON
def report(run: str | None, inventory: str | None, hosts: str | None, output: str | None, as_json: bool) -> None:
    """Write an HTML report of RUN (default: the newest run).

    It shows the first failure, the timeline, the hosts, curves of the training and of the machines, and the
    configuration.
    """
    from .commands import report as reports

    sys.exit(reports.report(run, inventory, hosts, output, as_json))


@cli.command(short_help="stop a run and clean up")
@RUN
@INVENTORY_OF_RUN
@HOSTS
@click.option(
    "--leftovers",
    is_flag=True,
    help="Clean up processes left over from finished runs; leave running runs alone.",
)
@click.option("--stale", cls=deprecated.OldOption, now="--leftovers", is_flag=True)
@click.option("--all", "everything", is_flag=True, help="Stop all of your runs on these hosts.")
@click.option(
    "--grace", type=Grace(), metavar="S", help="Seconds between SIGTERM and SIGKILL. Default: run.grace of the run."
)
@click.option(
    "--force",
    multiple=True,
    metavar="HOST:PID",
    help="Also kill this process, even if ddp-orch did not start it. Without RUN, kill only this process.",
)
@JSON
def kill(run: str | None, inventory: str | None, hosts: str | None, **options: Any) -> None:
    """Stop RUN, and verify that no process of it is left.

    Default: the newest unfinished run, and all processes that finished runs have left over.
    A host that does not answer does not delay `kill RUN` with a whole id. Without RUN, ddp-orch waits for it, because
    it may have a newer run.
    """
    from .commands import kill as ending

    sys.exit(ending.kill(run, inventory, hosts, **options))


@cli.command(short_help="find the first cause of a failure")
@click.argument("run", nargs=-1, metavar="[RUN]", shell_complete=completion.run)
@click.option(
    "--log", "log", multiple=True, metavar="FILE...", help="Diagnose these log files instead, of any job. - is stdin."
)
@INVENTORY_OF_RUN
@HOSTS
@JSON
def diagnose(
    run: tuple[str, ...], log: tuple[str, ...], inventory: str | None, hosts: str | None, as_json: bool
) -> None:
    """Find the first cause of a failure of RUN (default: the newest run), with evidence and a fix.

    After 2 s, print the result from the hosts that have answered. If a late answer changes it, print it again.
    """
    from .commands import diagnose as diagnosing

    if log:
        sys.exit(diagnosing.diagnose_logs([*log, *run], as_json))
    if len(run) > 1:
        raise UsageError("give only one RUN; log files come after --log")
    sys.exit(diagnosing.diagnose_run(run[0] if run else None, inventory, hosts, as_json))


@cli.command(short_help="download the outputs of a run")
@RUN
@click.argument("pattern", required=False)
@click.option(
    "-o", "--output", metavar="DIR", help="Download to DIR/HOST/... Default: a folder with the name of the run."
)
@INVENTORY_OF_RUN
@HOSTS
def fetch(run: str | None, pattern: str | None, output: str | None, inventory: str | None, hosts: str | None) -> None:
    """Download the outputs of RUN (default: the newest run).

    These are the files in $DDP_ORCH_OUTPUT_DIR of each host. Files that the run wrote to relative paths go into code/.

    With PATTERN, such as '*.pt' or 'logs/**/*.json', only matching files are downloaded. * matches within a name, and
    ** matches any folders. The name of a folder matches everything in it. Links are skipped, and so are files that
    have not changed since the last download.
    """
    from .commands import fetch as fetching

    sys.exit(fetching.fetch(run, pattern, output, inventory, hosts))


@cli.command(short_help="delete old runs and outputs from the hosts")
@inventory
@HOSTS
@click.option("--force", is_flag=True, help="Also delete runs with files that were not fetched.")
@click.option("--outputs", is_flag=True, help="Delete the outputs of finished runs without a name instead. Asks first.")
@click.option(
    "--run",
    "named",
    multiple=True,
    metavar="RUN",
    help="With --outputs: delete only the outputs of this run. Can be repeated.",
)
@click.option("--yes", is_flag=True, help="With --outputs: do not ask.")
def prune(
    inventory: str | None, hosts: str | None, force: bool, outputs: bool, named: tuple[str, ...], yes: bool
) -> None:
    """Apply run.keep now: delete old finished runs, and code that no run has used since, from the hosts.

    Running runs are not touched. Outputs are kept unless you give --outputs or set run.keep.outputs. A run that wrote
    files outside $DDP_ORCH_OUTPUT_DIR is kept until you `fetch` them.
    """
    from .commands import prune as pruning

    if outputs and force:
        raise UsageError("--force and --outputs cannot be combined: --force is for the records of runs")
    if (named or yes) and not outputs:
        raise UsageError("--run and --yes need --outputs")
    if outputs:
        sys.exit(pruning.prune_outputs(inventory, hosts, named, yes=yes))
    sys.exit(pruning.prune(inventory, hosts, force=force))


@cli.command(short_help="test the notifications")
@inventory
@click.option("--test", is_flag=True, help="Send a test message.")
def notify(inventory: str | None, test: bool) -> None:
    """Send a test message from the head to notify.webhook and notify.command."""
    from .commands import notify as notifications

    if not test:
        words = ("notify", *(() if inventory is None else (inventory,)), "--test")
        raise UsageError(f"to send a message now: {shlex.join(['ddp-orch', *words])}")
    sys.exit(notifications.test(inventory))


@cli.command("exec", cls=CommandWithArgs, short_help="run a command on every host")
@inventory
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@HOSTS
@click.option(
    "--setup",
    is_flag=True,
    help="Run `setup` of each host first, as for the ranks of a run, and find what belongs to its `python`.",
)
@JSON
def exec_(inventory: str | None, command: tuple[str, ...], hosts: str | None, setup: bool, as_json: bool) -> None:
    """Run CMD on every host. Identical output is shown once, and the exit code is the worst one.

    A single argument is run by the login shell of the host; several arguments are executed directly, without a shell.
    Ctrl-C stops CMD on all hosts. Only the first 16 MiB of the output of a host are kept.
    """
    from .commands import exec as execute

    if not command:
        raise UsageError(hints.no_command(inventory))
    sys.exit(execute.execute(inventory, command, hosts, setup, as_json))


@cli.command(cls=CommandWithArgs, short_help="measure how training scales with the number of hosts")
@inventory
@click.argument("trainer_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- TRAINER ARGS...]")
@click.option(
    "--counts", metavar="LIST", help="Numbers of hosts to measure, such as 1,2,4. Default: 1, 2, 4, ... and all."
)
@click.option("--batch-per-host", type=click.IntRange(1), metavar="N", help="Samples per step and host. Default: 128.")
@click.option("--strong-scaling", is_flag=True, help="Keep the total batch the same for any number of hosts.")
@click.option("--fixed", cls=deprecated.OldOption, now="--strong-scaling", is_flag=True)
@click.option("--plot", type=click.Path(), default="bench.png", show_default=True, help="File for the plot.")
@JSON
def bench(**options: Any) -> None:
    """Measure throughput and scaling efficiency of the bundled trainer on 1, 2, 4, ... hosts, and find the bottleneck.

    Each number of hosts takes about a minute. Pass flags of the trainer after --, such as
    `-- --model resnet50 --data synthetic --precision bf16`. `-- --bench-seconds 10` measures five times as long.
    """
    from .commands import bench as benchmark

    sys.exit(benchmark.bench(benchmark.Bench(**options)))


@cli.command(short_help="train on two hosts on this machine")
def demo() -> None:
    """Train a small model on two hosts on this machine over real SSH. Takes less than a minute."""
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
        hush_stdout()
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
