"""The program `ddp-orch`: declares its commands, and ends with their exit codes. Decides nothing else.

commands/run_commands.py and change_commands.py declare most of the commands. Imports are inside the commands:
`ddp-orch --help` must not wait for SSH.
"""

from __future__ import annotations

import gc
import shlex
import signal
import sys
from typing import Any

import click

from . import __version__
from .commands import change_commands, deprecated, hints, run_commands
from .commands.exit_codes import flush_streams, guarded
from .commands.options import (
    HOSTS,
    INVENTORY_OF_RUN,
    JSON,
    RUN,
    Command,
    CommandWithArgs,
    Program,
    inventory,
    inventory_of_any_run,
)
from .errors import UsageError
from .output import streams


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="ddp-orch")
def cli() -> None:
    """Launch PyTorch distributed training on many machines over plain SSH.

    A run continues on its hosts when you close your terminal or shut down your laptop.
    """


@cli.command(short_help="write an inventory")
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@click.option("-o", "--output", default="inventory.yaml", show_default=True, metavar="FILE", help="File to write.")
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="Write the hosts of @slurm, @pbs, @lsf, @sge, @env, @hostfile:FILE, @ansible:FILE[#GROUP] or "
    "@ssh-config:PATTERN.",
)
@click.option(
    "--probe/--no-probe",
    default=None,
    help="Connect to the hosts, and look for Python with torch and for GPUs. Default: ask, if there is a terminal.",
)
def init(hosts: tuple[str, ...], output: str, source: str | None, probe: bool | None) -> None:
    """Write an inventory of the given HOSTs, or of hosts that you choose from ~/.ssh/config.

    A HOST is a name, user@name, a range such as gpu[01-16], or the command line of ssh that a provider shows:
    `ddp-orch init 'ssh root@1.2.3.4 -p 40022'`. `--from @hostfile:-` reads such lines from stdin.

    With --probe, `python` in the inventory is an interpreter that has torch on all hosts, and each host's GPUs are
    shown. Virtual and conda environments in the home folder and in /opt are searched.
    """
    from .commands import init as init_command

    sys.exit(init_command.init(hosts, source, output, probe))


@cli.command(short_help="accept the SSH keys of all hosts")
@inventory
@click.option("--yes", is_flag=True, help="Add unknown keys without asking.")
@HOSTS
def trust(inventory: str | None, yes: bool, hosts: str | None) -> None:
    """Show the SSH key fingerprints of all hosts and jump hosts, and add the unknown keys to known_hosts.

    Asks before it adds keys. To verify a fingerprint, run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the
    host. Changed keys are never added.
    """
    from .commands import trust as trust_command

    sys.exit(trust_command.trust(inventory, hosts, yes))


@cli.command(short_help="show the inventory with all defaults")
@inventory
@JSON
def config(inventory: str | None, as_json: bool) -> None:
    """Print the inventory as ddp-orch reads it, with every default filled in."""
    import json

    from .commands.context import load_inventory
    from .inventory import writing

    contents = load_inventory(inventory)
    click.echo(json.dumps(writing.as_dict(contents), indent=2) if as_json else writing.render(contents), nl=as_json)


@cli.command(short_help="find problems before you start a run")
@inventory
@click.option("--quick", is_flag=True, help="Run only the quick checks, as `up` does. Skip the network tests.")
@click.option(
    "--deep",
    is_flag=True,
    help="Also run a small job with the torch of the hosts: rendezvous, collectives, matrix product.",
)
@HOSTS
@JSON
def check(inventory: str | None, quick: bool, deep: bool, hosts: str | None, as_json: bool) -> None:
    """Find problems that would break a run on these hosts, and show a fix for each.

    Changes no settings of the hosts.
    """
    from .commands import check as check_command

    if quick and deep:
        raise UsageError("--quick and --deep cannot be combined")
    sys.exit(check_command.check(inventory, hosts, "quick" if quick else "deep" if deep else "usual", as_json))


@cli.command(short_help="install torch or copy the image to hosts that lack it")
@inventory
@click.option("--torch", metavar="VERSION", help="Version to install. Default: the version on the head, or the newest.")
@click.option(
    "--index-url", metavar="URL", help="Package index for pip, such as https://download.pytorch.org/whl/cu126."
)
@click.option("--wheels", metavar="DIR", help="Install from this folder, which every host has, instead of an index.")
@HOSTS
def setup(
    inventory: str | None, torch: str | None, index_url: str | None, wheels: str | None, hosts: str | None
) -> None:
    """Install torch on hosts that lack it. Needs no root.

    Makes a venv on each of these hosts, and installs the same version of torch in all of them. With `container`, copies
    the image from hosts that have it to those that lack it, directly between the hosts.
    """
    from .commands import setup as setup_command

    sys.exit(setup_command.setup(inventory, hosts, setup_command.SetupOptions(torch, index_url, wheels)))


@cli.command(short_help="delete old runs and outputs from the hosts")
@inventory
@HOSTS
@click.option(
    "--force",
    is_flag=True,
    help="Also delete runs with files that were not fetched. With --run: also if some of its hosts do not answer.",
)
@click.option(
    "--outputs", is_flag=True, help="Delete outputs instead: those of all finished runs without a name. Asks first."
)
@click.option(
    "--run",
    "named",
    multiple=True,
    metavar="RUN",
    help="Delete only this finished run, whatever run.keep says; its code goes after run.keep.days. "
    "With --outputs: only its outputs. Can be repeated.",
)
@click.option("--yes", is_flag=True, help="With --outputs: do not ask.")
def prune(
    inventory: str | None, hosts: str | None, force: bool, outputs: bool, named: tuple[str, ...], yes: bool
) -> None:
    """Apply run.keep now: delete old finished runs from the hosts, and code that no run uses any more.

    A run is deleted from all of its hosts or from none. Unfinished runs are not touched. Outputs are kept unless you
    give --outputs or set run.keep.outputs. A run that wrote files outside $DDP_ORCH_OUTPUT_DIR is kept until you
    `fetch` them.
    """
    from .commands import prune as prune_command

    if outputs and force:
        raise UsageError("--force and --outputs cannot be combined: --force is for the records of runs")
    if yes and not outputs:
        raise UsageError("--yes needs --outputs: without it, prune does not ask")
    if outputs:
        sys.exit(prune_command.prune_outputs(inventory, hosts, named, yes=yes))
    sys.exit(prune_command.prune(inventory, hosts, named, force=force))


@cli.command(short_help="test the notifications")
@inventory
@click.option("--test", is_flag=True, help="Send the test message. Required.")
def notify(inventory: str | None, test: bool) -> None:
    """Test notify.webhook, notify.mail and notify.command: the head sends a test message to each.

    Exits with 3 if one of them fails.
    """
    from .commands import notify as notify_command

    if not test:
        words = ("notify", *(() if inventory is None else (inventory,)), "--test")
        raise UsageError(f"to send a message now: {shlex.join(['ddp-orch', *words])}")
    sys.exit(notify_command.test(inventory))


@cli.command(cls=Command, short_help="collect what a bug report needs")
@RUN
@INVENTORY_OF_RUN
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE.tar.gz",
    help="File to write. Default: ddp-orch-doctor-TIME.tar.gz.",
)
def doctor(run: str | None, inventory: str | None, output: str | None) -> None:
    """Write versions, inventory, checks and what is known about RUN (default: the newest run) to one archive.

    Values of run.secrets that are set in your environment, variables whose names look like credentials, and the
    targets of notify are masked. Nothing is sent anywhere.
    """
    from .commands import doctor as doctor_command

    sys.exit(doctor_command.doctor(run, inventory, output))


@cli.command("exec", cls=CommandWithArgs, short_help="run a command on every host")
@inventory
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@HOSTS
@click.option(
    "--setup",
    is_flag=True,
    help="Run CMD in the environment of the ranks: after `setup`, with the folder of `python` on the PATH.",
)
@click.option("--stream", is_flag=True, help="Show each line as it comes, also equal ones of several hosts.")
@JSON
def exec_(
    inventory: str | None, command: tuple[str, ...], hosts: str | None, setup: bool, stream: bool, as_json: bool
) -> None:
    """Run CMD on every host. Show identical output once. Exit with the highest exit code of CMD on any host.

    If CMD is a single argument, the login shell of the host runs it: `ddp-orch exec -- 'nproc; free -g'`. If CMD has
    several arguments, it runs without a shell. Ctrl-C stops CMD on all hosts. Without --stream, the output is shown
    when all hosts have finished, at most 16 MiB of each host; on a terminal, you see the newest line of each before.
    """
    from .commands import exec as exec_command

    if not command:
        raise UsageError(hints.no_command(inventory))
    sys.exit(exec_command.execute(inventory, command, hosts, setup, as_json, stream))


@cli.command(short_help="list the GPUs of all hosts and who uses them")
@inventory_of_any_run
@HOSTS
@JSON
def gpus(inventory: str | None, hosts: str | None, as_json: bool) -> None:
    """List the GPUs of all hosts: memory, use, temperature, and which run, or whose process, uses them.

    Asks nvidia-smi on each host. Needs no run and no Python with torch.
    """
    from .commands import gpus as gpus_command

    sys.exit(gpus_command.gpus(inventory, hosts, as_json))


@cli.command(cls=CommandWithArgs, short_help="measure how training scales with the number of hosts")
@inventory
@click.argument("trainer_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- TRAINER ARGS...]")
@click.option(
    "--counts", metavar="LIST", help="Numbers of hosts to measure, such as 1,2,4. Default: 1, 2, 4, ... and all."
)
@click.option("--batch-per-host", type=click.IntRange(1), metavar="N", help="Samples per step and host. Default: 128.")
@click.option(
    "--strong-scaling",
    is_flag=True,
    help="Use --batch-per-host samples per step for all hosts together.",
)
@click.option("--fixed", cls=deprecated.OldOption, now="--strong-scaling", is_flag=True)
@click.option("--plot", type=click.Path(), default="bench.png", show_default=True, help="File for the plot.")
@JSON
def bench(**options: Any) -> None:
    """Measure the throughput of the bundled trainer on 1, 2, 4, ... hosts, how well it scales, and what limits it.

    Each number of hosts takes about a minute. Give flags of the trainer after --, such as
    `-- --model resnet50 --data synthetic --precision bf16`. To measure for longer, give `-- --bench-seconds 10`
    (default: 2).
    """
    from .commands import bench as bench_command

    sys.exit(bench_command.bench(bench_command.BenchOptions(**options)))


@cli.command(short_help="train on two hosts on this machine")
@click.option("--python", metavar="PATH", help="Python with torch. Default: this one, $VIRTUAL_ENV, conda, or PATH.")
def demo(python: str | None) -> None:
    """Train a small model on two hosts on this machine over real SSH. Takes less than a minute.

    In the middle, one rank is killed: you see how ddp-orch restarts the run.
    """
    from .demo.demo import main as run_demo

    sys.exit(run_demo(python))


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


@cli.command("completion", short_help="print the script for tab completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_(shell: str) -> None:
    """Print the script that completes commands, options, runs and hosts in SHELL.

    The installation has the same scripts in its folder `share`, where shells look by themselves if it is /usr or
    /usr/local. Otherwise, run one of these once:

    \b
    bash: echo 'eval "$(ddp-orch completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(ddp-orch completion zsh)"' >> ~/.zshrc
    fish: ddp-orch completion fish > ~/.config/fish/completions/ddp-orch.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(cli, {}, "ddp-orch", "_DDP_ORCH_COMPLETE").source())


for _command in (*run_commands.COMMANDS, *change_commands.COMMANDS):
    cli.add_command(_command)


def main() -> None:
    """Run the command line. orchestrator/errors.py lists the exit codes."""
    # Python collects garbage after every 700 objects and at exit: a tenth of the time of a short command.
    gc.set_threshold(100_000, 50, 50)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # `ddp-orch up ... &` in a script, which `kill -INT` must stop
        signal.signal(signal.SIGINT, signal.default_int_handler)
    streams.set_up()
    code = flush_streams(guarded(lambda: cli(prog_name="ddp-orch", standalone_mode=False)))
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
