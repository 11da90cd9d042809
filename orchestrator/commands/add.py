"""`add`: take one more host into a run, as a spare or for its next attempt."""

from __future__ import annotations

import json

from ..answers.fields import UNFINISHED
from ..errors import UnreachableError, UsageError
from ..inventory import advice, via
from ..inventory.hostnames import nearest
from ..runs import newcomer, revive, waiting
from .context import find_run, load_inventory_of_run, open_fleet, stderr_console, whoami


def add_host(run_name: str, host_name: str, inventory_path: str | None, *, as_json: bool) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    hosts = {host.name: host for host in inventory.hosts}
    if host_name not in hosts:
        raise UsageError(
            f"{host_name} is not in {inventory.path}; add it there first ({nearest(host_name, list(hosts))})"
        )
    if via.bound_hosts([hosts[host_name]]):
        raise UsageError(
            f"{host_name}: ddp-orch reaches it with srun, so Slurm would end its guard together with this command. "
            "Set ssh.via: openssh, or start the run again with this host"
        )
    with open_fleet(inventory) as fleet:
        lookup = find_run(fleet, inventory, run_name, console)
        run = lookup.run
        if run.state not in UNFINISHED:
            raise UsageError(f"run {run.run_id} has ended: {run.state}")
        about = advice.about(run, lookup.listing.runs, inventory.path)
        if host_name in run.left or host_name in run.drained:
            raise UsageError(revive.describe_drained(run, [host_name], inventory, about))
        if why := waiting.describe_no_majority(run, about):
            raise UnreachableError(why)
        if host_name in run.parts:
            raise UsageError(f"{host_name} is a host of run {run.run_id} already")
        if host_name in run.hosts and host_name in lookup.listing.failed:
            raise UnreachableError(
                f"{host_name} is a host of run {run.run_id} already, and cannot be reached. When it can: "
                f"{about.command('revive')}"
            )
        if host_name in run.hosts:
            raise UsageError(
                f"run {run.run_id} has another host of the name {host_name}; give this machine a name of its own in "
                f"{inventory.path}"
            )
        head = next(name for name, number in run.all_nodes.items() if number == run.head)
        if head not in hosts or head in lookup.listing.failed:
            restart = about.command("restart")
            raise UnreachableError(
                f"{head}, the head of run {run.run_id}, cannot be reached. To start the run again without it: "
                f"{restart} --hosts PATTERN"
            )
        newcomer.add(run, hosts[host_name], hosts[head], inventory, fleet, by=whoami(), warn=console.warning)
    if as_json:
        print(json.dumps({"run_id": run.run_id, "host": host_name}, indent=2))
    console.note(f"{host_name} takes part in run {run.run_id} as a spare; its next attempt may use it")
    return 0
