"""`drain`: take a host out of a run, which continues without it or with a spare."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial

from ..answers.drain import DRAIN, DrainAnswer
from ..answers.fields import UNFINISHED
from ..answers.operation import Arguments
from ..answers.runs import LIST
from ..errors import OrchError, UnreachableError, UsageError
from ..hosts.fleet import Fleet
from ..hosts.session import Refused, Session
from ..inventory import advice
from ..inventory.model import Inventory
from ..output.console import Console, fold
from ..runs import choice, registry, waiting
from ..runs.missing_ranks import launcher_once_per_host
from .context import find_run_early, load_inventory_of_run, open_fleet, stderr_console, whoami

BEYOND_GRACE = 60.0  # s beyond grace and leases for a host to stop its ranks and to end its guard
LOOK_EVERY = 0.5  # s
STARTS = 60.0  # s for the first attempt to begin, which may wait for outputs to be copied
RESIGNS = 3  # leases in which a head without a majority resigns, and the hosts find out who is silent
ELECTION = 6.0  # s beyond a lease from the last message of a head to the first attempt of the next one


def drain_host(run_name: str, host_name: str, inventory_path: str | None, *, as_json: bool) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory) as fleet:
        lookup = find_run_early(fleet, inventory, run_name, console, partial(_have_answered, host_name))
        run = lookup.run
        node = _node(run, host_name)
        about = advice.about(run, lookup.listing.runs, inventory.path)
        if why := waiting.describe_no_majority(run, about):
            raise UnreachableError(why)
        head = _head(run)
        hosts = {host.name: host for host in inventory.machines}
        if head not in hosts or head in lookup.listing.failed:
            unused = lookup.listing.find_unused([host.name for host in inventory.hosts])
            without = _restart_without(run, [host_name, *lookup.listing.failed], about, unused)
            raise UnreachableError(f"{head}, the head of run {run.run_id}, cannot be reached.{without}")
        arguments = {"run_id": run.run_id, "node": node, "by": whoami()}
        try:
            answer = _request(fleet.session(hosts[head]), arguments)
        except Refused as error:
            if error.code != "no-majority":
                raise
            console.step("no majority of the hosts seems to answer; asking which hosts are silent")
            raise _explain(error, run, host_name, about, fleet, inventory) from error
        if not answer.accepted:
            silent = [name for name in run.all_nodes if name in {*run.without_guard, *lookup.listing.failed}]
            is_fixed = launcher_once_per_host(run.run_id, [hosts[head]], fleet) is not None
            unused = lookup.listing.find_unused([host.name for host in inventory.hosts])
            why = refusal(run, host_name, silent, about, elects=answer.elects, is_fixed=is_fixed, unused=unused)
            raise UsageError(why)
        _say_what_follows(run, host_name, is_head=host_name == head, console=console)
        has_left = host_name not in run.parts or _wait(run, host_name, inventory, fleet)
    if as_json:
        print(json.dumps({"run_id": run.run_id, "host": host_name, "left": has_left}, indent=2))
    if has_left:
        console.note(f"{host_name} has left run {run.run_id}")
        return 0
    raise UnreachableError(
        f"{host_name} has not left run {run.run_id} yet. It does as soon as the head and enough other hosts answer; to "
        f"look at them: {about.command('describe')}"
    )


def _request(session: Session, arguments: Arguments) -> DrainAnswer:
    """Ask again while the run is starting: it refuses everything until its first attempt has begun."""
    run_id, deadline = arguments["run_id"], time.monotonic() + STARTS
    while True:
        parts = session.request(LIST, {"members": False}).runs
        is_starting = any(part.run_id == run_id and part.state == "starting" for part in parts)
        answer = session.request(DRAIN, arguments)
        if answer.accepted or not is_starting:
            return answer
        if time.monotonic() > deadline:
            raise UsageError(f"run {run_id} is still starting; drain the host when its ranks run")
        time.sleep(LOOK_EVERY)


def _explain(
    error: Refused, run: registry.Run, host_name: str, about: advice.AboutRun, fleet: Fleet, inventory: Inventory
) -> OrchError:
    """Say what helps, once the hosts know for whom they wait: the head resigns first."""
    enough = partial(_have_answered, host_name, run.run_id, str(inventory.path))
    deadline = time.monotonic() + RESIGNS * run.lease
    while time.monotonic() < deadline:
        listing = registry.Search(fleet, inventory.machines, run_name=run.run_id).wait(enough)
        now = choice.choose(listing, run.run_id, str(inventory.path))
        if why := waiting.describe_no_majority(now, about):
            return UnreachableError(f"{error}. {why[0].upper()}{why[1:]}")
        time.sleep(LOOK_EVERY)
    return error


def _have_answered(host_name: str, run_name: str | None, path: str, listing: registry.Listing) -> bool:
    """Whether the host and the head are among the hosts that have answered: another one may be powered off.

    Without a majority, the others are not needed for the answer.
    """
    if not choice.is_known(run_name, path, listing):
        return False
    run = choice.choose(listing, run_name, path)
    if run.waits is not None and run.waits.no_majority:
        return True
    return {host_name, _head(run)} <= listing.answered


def _head(run: registry.Run) -> str:
    return next(name for name, number in run.all_nodes.items() if number == run.head)


def _node(run: registry.Run, host_name: str) -> int:
    if host_name not in run.all_nodes:
        raise UsageError(f"{host_name} is no host of run {run.run_id}; its hosts are {fold(list(run.all_nodes))}")
    if run.state not in UNFINISHED:
        raise UsageError(f"run {run.run_id} has ended: {run.state}")
    if host_name == run.witness:
        raise UsageError(f"{host_name} is the witness of run {run.run_id}, which cannot be drained")
    if host_name in run.drained and not (host_name in run.parts and run.parts[host_name].unfinished):
        raise UsageError(f"{host_name} has left run {run.run_id} already")
    return run.all_nodes[host_name]


def refusal(
    run: registry.Run,
    host: str,
    silent: Sequence[str],
    about: advice.AboutRun,
    *,
    elects: bool,
    is_fixed: bool = False,
    unused: Sequence[str] = (),
) -> str:
    """Why the host cannot be drained, and what helps. `silent`: hosts of the run that are off or have no guard.

    `is_fixed`: the run's launcher takes no further hosts. `unused`: see `_restart_without`.
    """
    others = [name for name in silent if name != host]
    revive, says_restart = about.command("revive"), False
    why = f"run {run.run_id} cannot continue without {host}: "
    if host == _head(run) and not elects:
        why = (
            f"{host} is the head of run {run.run_id}, and its hosts elect no other head. They do if three machines can "
            "vote (a witness counts), with run.max_restarts and without run.head_lost: stop."
        )
    elif others and elects:
        drain = "" if run.state == "waiting" else ", or drain it first"
        why += (
            f"{fold(others)} does not answer, so the others are too few, or no majority. Bring {fold(others)} back "
            f"with `{revive}`{drain}."
        )
    elif host in silent:
        why += f"it has no spare and not enough other hosts. Start {host} again, then take it back with `{revive}`."
    elif unfit := waiting.describe_unfit(run, about):
        why += unfit
        says_restart = True
    elif run.state == "waiting":
        why += f"it waits for hosts that it lost. Bring them back with `{revive}`."
    elif left_out := waiting.describe_left_out(run):
        why += f"{left_out}."
    else:
        why += "it has no spare and not enough other hosts."
        why += "" if is_fixed else " Add a host first with `ddp-orch add`."
    without = "" if says_restart else _restart_without(run, [host, *silent], about, unused)
    return f"{why}{without} To end the run, use: {about.command('kill')}"


def _restart_without(run: registry.Run, names: Sequence[str], about: advice.AboutRun, unused: Sequence[str]) -> str:
    """A sentence with the command that starts the run again without some hosts; "" if it has no others.

    `unused`: hosts that no run uses. They take the places that are empty then.
    """
    gone = {*names, *run.drained}
    left = [name for name in run.all_nodes if name not in gone and name != run.witness]
    if not left:
        return ""
    free = [name for name in unused if name in run.sources or name not in run.all_nodes]
    more = [name for name in free if name not in names][: max(0, run.team - len(left))]
    without = fold([name for name in run.all_nodes if name in names])
    hosts = fold(sorted(left, key=run.all_nodes.__getitem__) + more)
    return f" To start the run again without {without}: `{about.command('restart', '--hosts', hosts)}`."


def _say_what_follows(run: registry.Run, host_name: str, *, is_head: bool, console: Console) -> None:
    part = run.parts.get(host_name)
    if part is None or part.node_rank is None:
        return
    text = f"stopping the ranks of run {run.run_id}, which have {run.grace:g} s to save a snapshot"
    # a lease without a message from the head, then a vote, and the window in which the ranks of its attempt end
    seconds = run.lease + ELECTION
    console.step(f"{text}; the others elect another head, about {seconds:.0f} s later" if is_head else text)


def _wait(run: registry.Run, host_name: str, inventory: Inventory, fleet: Fleet) -> bool:
    """Wait until the run is over on that host. For the head, that lasts until the others have elected another one."""
    host = next(host for host in inventory.machines if host.name == host_name)
    deadline = time.monotonic() + run.grace + 3 * run.lease + BEYOND_GRACE
    while time.monotonic() < deadline:
        try:
            parts = fleet.session(host).request(LIST, {"members": False}).runs
        except OrchError:
            return False
        if not any(part.run_id == run.run_id and part.unfinished for part in parts):
            return True
        time.sleep(LOOK_EVERY)
    return False
