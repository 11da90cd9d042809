"""Declare the commands that start a run or look at runs. change_commands.py and orchestrator/cli.py declare the others.

Imports are inside the commands: `ddp-orch --help` must not wait for SSH.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from ..errors import UsageError
from . import completion, deprecated
from .options import (
    ENV,
    ENV_FILE,
    HOSTS,
    INVENTORY_OF_GIVEN_RUN,
    INVENTORY_OF_RUN,
    JSON,
    RUN,
    SET,
    Command,
    CommandWithArgs,
    inventory,
    inventory_of_any_run,
)


@click.command(cls=CommandWithArgs, short_help="start a run")
@inventory
@click.argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]", shell_complete=completion.script
)
@click.option("-d", "--detach", is_flag=True, help="Return when the run has started, and print its id.")
@click.option("--dry-run", is_flag=True, help="Print what would run on each host, without connecting.")
@JSON
@click.option("--name", help="Name of the run and of its output folder. The name of a finished run reuses its folder.")
@click.option("--skip-check", is_flag=True, help="Start even if the checks find an error.")
@HOSTS
@click.option("--wait", is_flag=True, help="Wait while another run uses the GPUs or the name.")
@click.option("--queue", is_flag=True, help="Wait for your turn on the hosts: behind runs that were queued earlier.")
@click.option("--watch", is_flag=True, help="Restart the run when its code changes.")
@click.option("--debug", is_flag=True, help="Enable verbose NCCL and torch logging.")
@click.option("--timing", is_flag=True, help="Print how long each phase of the launch took.")
@click.option(
    "--requeue", is_flag=True, help="Name the run after its job, and queue the job again if the run exits with 75."
)
@ENV
@ENV_FILE
@SET
@click.option("--call", metavar="MODULE:FUNCTION", hidden=True)  # of orchestrator.run: docs/python.md
def up(**options: Any) -> None:
    """Start SCRIPT on all hosts and follow its output.

    SCRIPT is a Python file, `-m MODULE`, or a command line of torchrun, accelerate, deepspeed or mpirun, such as
    `ddp-orch up -- torchrun train.py`. With run.launcher: node, it is any command, which is started once per host.

    Without SCRIPT, run `run.script` of the inventory, or the bundled trainer if there is none. Flags without SCRIPT,
    such as `ddp-orch up -- --epochs 3`, are added to run.args. Without run.script, `ddp-orch up -- --help` shows the
    flags of the bundled trainer.

    Ctrl-C stops the run gracefully; a second Ctrl-C kills it.

    \b
    Exit codes:
      0     the run succeeded
      1     the run failed
      2     wrong usage, or an error in the inventory
      3     a check failed; the run was not started
      4     a host is unreachable or was lost
      5     a GPU, port or name is in use; the run was not started
      75    the run was asked to save a snapshot and was stopped; a job script can queue it again
      130   the run was killed
    """
    from . import up as up_command
    from .up_options import UpOptions

    request = UpOptions(**options)
    if request.watch:
        from . import code_watch

        sys.exit(code_watch.watch(request))
    sys.exit(up_command.up(request))


@click.command(cls=Command, short_help="show the output of a run")
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
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends. Exit with the exit code of the run.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Show the last N lines of each stream.")
@click.option("--rank", metavar="LIST", help="Show only these ranks, such as 0,4-7.")
@click.option(
    "--stream",
    type=click.Choice(["stdout", "stderr", "agent"]),
    help="Show only this stream; agent: the lines of torchrun and ddp-orch.",
)
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="Show only this attempt.")
@click.option("--since", metavar="T", help="Show only lines from this time on: 5m (ago), or 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="T", help="Show only lines up to this time.")
@click.option("--grep", metavar="RE", help="Show only lines that match this regular expression.")
@click.option("--timestamps", is_flag=True, help="Show the time of each line (UTC).")
@click.option(
    "--all", "show_all", is_flag=True, help="Show every line, also harmless warnings and tracebacks of torchrun."
)
@click.option("--fold", is_flag=True, help="Show equal lines of several ranks once, with differing numbers as a range.")
@click.option(
    "-o", "--output", type=click.Path(), metavar="DIR", help="Write to files: one per rank and stream, and merged.log."
)
@JSON
def logs(**options: Any) -> None:
    """Show the output of RUN (default: the newest run) from all hosts in one stream, ordered by time.

    If a host does not answer within 2 s, its lines are shown later, when it answers. -o waits for all hosts.
    """
    from . import logs as logs_command

    sys.exit(logs_command.logs(logs_command.LogsOptions(**options)))


@click.command(cls=Command, short_help="wait until a run has ended")
@RUN
@INVENTORY_OF_RUN
@click.option("--ready", is_flag=True, help="Wait until the server that RUN starts answers.")
@click.option("--timeout", metavar="T", help="Wait so long at most, such as 90s or 2h. Then exit with 124.")
def wait(run: str | None, inventory: str | None, ready: bool, timeout: str | None) -> None:
    """Wait until RUN (default: the newest run) has ended. Print how it ended, and exit with its exit code. If it is
    queued, wait for its start first.

    With --ready, exit with 0 as soon as the server answers, for launchers such as vllm that have a `ready` URL. If the
    run ends before, exit with its exit code, or 1.

    Hosts that are rebooted in the meantime are brought back into the run. Ctrl-C stops the waiting, not the run.
    """
    from . import wait as wait_command

    sys.exit(wait_command.wait(run, inventory, ready=ready, timeout=timeout))


@click.command(cls=Command, short_help="follow a run, as `logs -f` does")
@RUN
@INVENTORY_OF_RUN
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Start with the last N lines of each stream.")
@click.option("--since", metavar="T", help="Start with the lines of this time: 5m (ago), or 2026-01-31T12:00:00Z.")
def attach(run: str | None, inventory: str | None, tail: int | None, since: str | None) -> None:
    """Follow the output of RUN (default: the newest run) until it ends. Exit with the exit code of the run.

    The same as `ddp-orch logs -f`, which has more options. Ctrl-C detaches: unlike in `up`, it does not stop the run.
    """
    from . import logs as logs_command

    options = logs_command.LogsOptions(run=run, inventory=inventory, tail=tail, since=since, follow=True)
    sys.exit(logs_command.logs(options))


@click.command(cls=Command, short_help="list runs")
@inventory_of_any_run
@HOSTS
@click.option("--all", "everything", is_flag=True, help="Also list finished runs.")
@click.option(
    "-s", "--size", "with_size", is_flag=True, help="Also show the disk space of each run: logs with code, and outputs."
)
@JSON
def ps(inventory: str | None, hosts: str | None, everything: bool, with_size: bool, as_json: bool) -> None:
    """List your runs on the hosts of the inventory, no matter which machine started them."""
    from . import ps as ps_command

    sys.exit(ps_command.ps(inventory, hosts, everything, as_json, with_size=with_size))


@click.command(cls=Command, short_help="show a live board of a run")
@RUN
@INVENTORY_OF_RUN
@HOSTS
def top(run: str | None, inventory: str | None, hosts: str | None) -> None:
    """Show a live board of RUN: ranks, step, loss, GPUs, CPU and network of each host.

    Default: the newest unfinished run, else the newest run. In a pipe, print one table.
    """
    from . import top as top_command

    sys.exit(top_command.top(run, inventory, hosts))


@click.command(cls=Command, short_help="list what happened in a run")
@RUN
@INVENTORY_OF_RUN
@HOSTS
@click.option("--since", metavar="T", help="Show only events from this time on: 5m (ago), or 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="T", help="Show only events up to this time.")
@JSON
def events(
    run: str | None, inventory: str | None, hosts: str | None, since: str | None, until: str | None, as_json: bool
) -> None:
    """List what happened in RUN (default: the newest run): attempts, failures, lost and replaced hosts, requests.

    Prints the time (UTC), the seconds since the first event, and the event.
    """
    from . import events as events_command

    sys.exit(events_command.events(run, inventory, hosts, since, until, as_json=as_json))


@click.command(cls=Command, short_help="show what is known of a run on one page")
@RUN
@INVENTORY_OF_RUN
@HOSTS
@JSON
def describe(run: str | None, inventory: str | None, hosts: str | None, as_json: bool) -> None:
    """Show RUN (default: the newest run) on one page: state, hosts and ranks, command, code, events, and where its
    files are.
    """
    from . import describe as describe_command

    sys.exit(describe_command.describe(run, inventory, hosts, as_json=as_json))


@click.command(cls=CommandWithArgs, short_help="open a shell in the environment of a run")
@click.argument("run", shell_complete=completion.run)
@click.argument("host", required=False, shell_complete=completion.host)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@INVENTORY_OF_GIVEN_RUN
def shell(run: str, host: str | None, command: tuple[str, ...], inventory: str | None) -> None:
    """Open a shell on HOST (default: the head) with the folder, variables and python of RUN, or run CMD there.

    It runs after `setup`, in the folder of the code, with the variables of the ranks (not those of one rank, such as
    RANK), and in a new container of the run's image if there is one. Secrets are set while the run is running.

    The shell is not part of the run: `kill` leaves it alone. Exits with the exit code of the shell or CMD. If the shell
    does not answer, press Enter, then type ~. to leave it.
    """
    from . import shell as shell_command

    sys.exit(shell_command.shell(run, host, command, inventory))


@click.command("port-forward", cls=Command, short_help="reach a port of a run's host from here")
@click.argument("run", shell_complete=completion.run)
@click.argument("place", metavar="[HOST:|LOCAL:]PORT")
@click.option(
    "--local-port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port of this machine. Default: PORT; 0: a free one.",
)
@INVENTORY_OF_GIVEN_RUN
def port_forward(run: str, place: str, local_port: int | None, inventory: str | None) -> None:
    """Forward a port of this machine to PORT of HOST (default: the head) of RUN, over SSH, until Ctrl-C.

    LOCAL:PORT is short for --local-port LOCAL PORT.

    Use it for TensorBoard, a debugger or a profiler that listens on the host. Only this machine can connect to the
    local port. Works with every `via`, and while no program listens on PORT yet.
    """
    from . import port_forward as port_forward_command

    sys.exit(port_forward_command.port_forward(run, place, local_port, inventory))


@click.command(cls=Command, short_help="write an HTML report of a run")
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
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option(
    "--since", metavar="T", help="Curves, machines and logs from this time on: 5m (ago), or 2026-01-31T12:00:00Z."
)
@click.option("--until", metavar="T", help="Curves, machines and logs up to this time.")
@JSON
def report(
    run: str | None,
    inventory: str | None,
    hosts: str | None,
    output: str | None,
    opens: bool,
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Write an HTML report of RUN (default: the newest run).

    It shows the first failure, the timeline, the hosts, curves of the training and of the machines, and the
    configuration.
    """
    from . import report as report_command

    sys.exit(report_command.report(run, inventory, hosts, output, as_json, opens=opens, since=since, until=until))


@click.command(cls=Command, short_help="find the first cause of a failure")
@click.argument("run", nargs=-1, metavar="[RUN]", shell_complete=completion.run)
@click.option(
    "--log",
    "log",
    multiple=True,
    metavar="FILE...",
    help="Diagnose these log files, of any job. - is stdin.",
)
@INVENTORY_OF_RUN
@HOSTS
@click.option("--since", metavar="T", help="Only failures from this time on: 5m (ago), or 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="T", help="Only failures up to this time.")
@JSON
def diagnose(
    run: tuple[str, ...],
    log: tuple[str, ...],
    inventory: str | None,
    hosts: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Find the first cause of a failure of RUN (default: the newest run), with evidence and a fix.

    If a host does not answer within 2 s, print the diagnosis of the other hosts. If a late answer changes the
    diagnosis, print it again. Exits with 0, also if there was a failure, and with 4 if a host did not answer.
    """
    from . import diagnose as diagnose_command

    if log:
        sys.exit(diagnose_command.diagnose_logs([*log, *run], as_json, since, until))
    if len(run) > 1:
        raise UsageError("give only one RUN; log files come after --log")
    sys.exit(diagnose_command.diagnose_run(run[0] if run else None, inventory, hosts, as_json, since, until))


@click.command(cls=Command, short_help="download the outputs of a run")
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
    from . import fetch as fetch_command

    sys.exit(fetch_command.fetch(run, pattern, output, inventory, hosts))


COMMANDS = (
    up,
    logs,
    attach,
    wait,
    ps,
    top,
    events,
    describe,
    shell,
    port_forward,
    report,
    diagnose,
    fetch,
)
