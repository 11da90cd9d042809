"""`shell`: a shell, or one command, in the environment of a run on one of its hosts."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..inventory.model import Host, Inventory
from ..output.console import fold
from ..runs import choice, registry
from ..runs import shell as shells
from .context import find_run_early, load_inventory_of_run, open_fleet, stderr_console


def shell(run_name: str, host_name: str | None, command: tuple[str, ...], inventory_path: str | None) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        run = find_run_early(fleet, inventory, run_name, console, choice.is_known).run
        host = find_host(run, inventory, host_name)
        interactive = shells.has_terminal()

        def on_start(missing: Sequence[str]) -> None:
            if missing:
                why = "the run has ended" if not run.unfinished else "the run's process there does not answer"
                console.warning(f"{', '.join(missing)}: secrets of run {run.run_id} that are not set, because {why}")
            if interactive and not command:
                end = ", and the run continues" if run.unfinished else ""
                console.note(f"run {run.run_id} ({run.state}) on {host.name}; `exit` leaves the shell{end}")

        session = fleet.session(host)
        return shells.run(session, run.run_id, command, terminal=interactive, on_start=on_start)


def find_host(run: registry.Run, inventory: Inventory, name: str | None) -> Host:
    """The host of a run with this name; None: its head. Raises UsageError."""
    if name is None:
        name = next((host for host, number in run.all_nodes.items() if number == run.head), None)
    elif name not in run.all_nodes:
        raise UsageError(f"run {run.run_id} has no host {name!r}; it has {fold(run.all_nodes)}")
    host = next((host for host in inventory.hosts if host.name == name), None)
    if host is None:
        raise UsageError(f"{name or 'the head'} of run {run.run_id} is not in {inventory.path}; give -i FILE")
    return host
