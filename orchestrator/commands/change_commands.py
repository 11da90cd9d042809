"""Declare the commands that stop or change a run.

Imports are inside the commands: `ddp-orch --help` must not wait for SSH.
"""

from __future__ import annotations

import sys
from typing import Any

import click

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
    Seconds,
)


@click.command(cls=Command, short_help="stop a run and clean up")
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
    "--grace", type=Seconds(), metavar="S", help="Seconds between SIGTERM and SIGKILL. Default: run.grace of the run."
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

    A run that is still queued leaves the queue. Without RUN, stop the newest unfinished run, and clean up the
    processes that finished runs have left over.

    If a host does not answer, `kill RUN` with the full id of a run stops the run on the other hosts at once. Without
    RUN, kill waits for the host, because it may have a newer run.

    Exits with 0 if nothing is left, 1 if a process is still running, and 4 if a host did not answer.
    """
    from . import kill as kill_command

    sys.exit(kill_command.kill(run, inventory, hosts, **options))


@click.command(cls=Command, short_help="stop a run and start it again")
@click.argument("run", shell_complete=completion.run)
@click.option("-d", "--detach", is_flag=True, help="Return when the run has started again, and print its id.")
@click.option("--hosts", metavar="PATTERN", help="Use these hosts, instead of those of `up --hosts`.")
@ENV
@ENV_FILE
@SET
@INVENTORY_OF_GIVEN_RUN
def restart(run: str, inventory: str | None, detach: bool, hosts: str | None, **added: tuple[str, ...]) -> None:
    """Stop RUN, and start it again with the same inventory, arguments and name. If RUN has ended, only start it.

    If its script handles run.snapshot_signal, it saves a snapshot before it stops. The new run has the same output
    folder, so a script that resumes continues. The code is sent again as it is now. -e, --env-file and --set are added
    to those of RUN, and override them. Works on the machine that started RUN.
    """
    from . import restart as restart_command
    from .restart_options import Added

    sys.exit(restart_command.restart(run, inventory, detach=detach, hosts=hosts, added=Added(**added)))


@click.command(cls=Command, short_help="send a signal to the ranks of a run")
@click.argument("run", shell_complete=completion.run)
@click.argument("signal_name", metavar="SIG")
@click.option("--rank", metavar="LIST", help="Signal only these ranks, such as 0,4-7.")
@INVENTORY_OF_GIVEN_RUN
@JSON
def signal(run: str, signal_name: str, rank: str | None, inventory: str | None, as_json: bool) -> None:
    """Send a signal to the ranks of RUN. SIG is a name such as USR1, or a number.

    ddp-orch signals the ranks directly, because torchrun passes on only some signals. If the signal ends a rank, the
    run fails or restarts. To stop a run, use `ddp-orch kill`.
    """
    from . import signals

    sys.exit(signals.signal_run(run, signal_name, inventory, ranks=rank, as_json=as_json))


@click.command(cls=Command, short_help="have a run save a snapshot")
@RUN
@click.option(
    "--timeout", type=Seconds(), default=600, metavar="SECONDS", help="Wait this long for the snapshot. Default: 600."
)
@INVENTORY_OF_RUN
@JSON
def snapshot(run: str | None, timeout: float, inventory: str | None, as_json: bool) -> None:
    """Send run.snapshot_signal to all ranks of RUN (default: the newest run). Wait for a line that begins with `saved`.

    The bundled trainer prints such a line. If a rank has no handler for the signal, ddp-orch signals no rank, because
    the signal would end that rank.

    Exits with 0 if the line came, 1 if it did not come in time, and 2 if a rank has no handler.
    """
    from . import signals

    sys.exit(signals.snapshot_run(run, inventory, limit=timeout, as_json=as_json))


@click.command(cls=Command, short_help="bring rebooted hosts back into a run")
@RUN
@INVENTORY_OF_RUN
@JSON
def revive(run: str | None, inventory: str | None, as_json: bool) -> None:
    """Bring rebooted hosts back into RUN (default: the newest run).

    RUN must be unfinished. At least one of its hosts must not have been rebooted: this host gives the others the key
    and the secrets of the run. `up`, `logs -f`, `wait` and `top` revive hosts by themselves while they follow a run.
    """
    from . import revive as revive_command

    sys.exit(revive_command.revive_run(run, inventory, as_json=as_json))


@click.command(cls=Command, short_help="take a host out of a run")
@click.argument("run", shell_complete=completion.run)
@click.argument("host", shell_complete=completion.host)
@INVENTORY_OF_GIVEN_RUN
@JSON
def drain(run: str, host: str, inventory: str | None, as_json: bool) -> None:
    """Take HOST out of RUN, and let RUN continue without it.

    Stops the ranks on all hosts. They have the grace period of the run to save a snapshot. Then a spare takes the
    place of HOST. Without a spare, the run continues with fewer hosts, if run.nnodes allows it. This restart does not
    count against run.max_restarts. If HOST is the head, another host becomes the head first. That needs three machines
    that can vote, and takes about two leases (run.lease).
    """
    from . import drain as drain_command

    sys.exit(drain_command.drain_host(run, host, inventory, as_json=as_json))


@click.command(cls=Command, short_help="take one more host into a run")
@click.argument("run", shell_complete=completion.run)
@click.argument("host", shell_complete=completion.host)
@INVENTORY_OF_GIVEN_RUN
@JSON
def add(run: str, host: str, inventory: str | None, as_json: bool) -> None:
    """Take HOST into RUN, without a restart.

    HOST must be in the inventory; write it there first. It gets the code and the secrets from the head of the run, and
    becomes a spare. With `nnodes: MIN:MAX`, the next attempt takes it, up to MAX hosts.
    """
    from . import add as add_command

    sys.exit(add_command.add_host(run, host, inventory, as_json=as_json))


COMMANDS = (
    kill,
    restart,
    signal,
    snapshot,
    revive,
    drain,
    add,
)
