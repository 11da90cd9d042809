"""Choose the run that the user means."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from ..errors import OrchError, UnreachableError, UsageError
from ..inventory.advice import command
from ..inventory.run_ids import RUN_ID, SUFFIX
from ..output.console import fold
from ..output.terminal import one_line
from . import queued_runs, recent
from .registry import Listing, Run

FETCH = "; `fetch` can still download its outputs"


def choose(listing: Listing, run: str | None, inventory: str) -> Run:
    """The run with this id, name (see `_matches`), unique prefix of an id, or end of an id; None: the newest.

    `inventory`: the path of the inventory whose hosts were asked. Raises UsageError, or UnreachableError if a host
    that did not answer may know the run.
    """
    runs = listing.runs
    if run is None:
        if not runs:
            raise _missing(listing, "there are no runs on these hosts", "runs")
        return runs[-1]
    if not run:
        raise UsageError("RUN is empty; give an id, a name or the beginning of an id, or omit RUN for the newest run")
    matches = _matches(runs, run)
    if not matches and (queued := queued_runs.find(listing.queued, run)):
        raise UsageError(queued_runs.describe(queued, inventory))
    if not matches and (of_other := find_of_others(listing, run)):
        run_id, user, hosts = of_other
        raise UsageError(
            f"run {run_id} on {fold(hosts)} belongs to user {user}. Only {user} sees its logs, and only {user} or root "
            "can stop it; how root does: docs/guides/administrators.md"
        )
    if not matches:
        ps = f"`{command('ps', '--all', inventory=inventory)}`"
        newest = f"; the newest is {runs[-1].run_id}" if runs else ""
        raise _missing(
            listing,
            f"no run {run!r} on these hosts{_advise(run, listing, inventory)}{newest}; {ps} lists them. "
            "Of finished runs, they keep as many as `run.keep` says",
            f"run {run!r}",
        )
    if len(matches) > 1:
        ids = ", ".join(known.run_id for known in matches)
        raise UsageError(f"{run!r} matches several runs: {ids}; give more characters")
    return matches[0]


def find_of_others(listing: Listing, run: str) -> tuple[str, str, Sequence[str]] | None:
    """The only run of another user with this id, start or end of an id: its id, user and hosts. Names are unknown."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, runs in listing.others.items():
        for other in runs:
            ends = len(run) >= SUFFIX and other.run_id.endswith(run)
            if ends or other.run_id.startswith(run):
                hosts.setdefault((other.run_id, one_line(other.user)), []).append(host)
    return next(((*found, on) for found, on in hosts.items()), None) if len(hosts) == 1 else None


def find_queued(listing: Listing, run: str) -> queued_runs.QueuedRun | None:
    """The run of `up --queue` that `run` means. None if it means one that has started."""
    return None if _matches(listing.runs, run) else queued_runs.find(listing.queued, run)


def _matches(runs: Sequence[Run], run: str) -> Sequence[Run]:
    """The run with this id or name; else all whose id begins with it, or else ends with it.

    Of several with the name, the newest unfinished one; if all have ended, the newest.
    """
    exact = [known for known in runs if run in (known.run_id, known.name)]
    exact = [known for known in exact if known.run_id == run or known.unfinished] or exact
    begin = [known for known in runs if known.run_id.startswith(run)]
    end = [known for known in runs if len(run) >= SUFFIX and known.run_id.endswith(run)]
    return exact[-1:] or begin or end


def was_deleted(run: str, inventory: str) -> bool:
    """Whether a run that no host knows has existed: its whole id was pasted, or it was started here."""
    return RUN_ID.fullmatch(run) is not None or recent.find(run, inventory) is not None


def _advise(run: str, listing: Listing, inventory: str) -> str:
    deleted = recent.find(run, inventory)
    if deleted is not None and not listing.failed:
        why = "was deleted, is on other hosts, or state_dir (on the hosts: $DDP_ORCH_STATE_DIR) was another folder"
        return f" (run {deleted.run_id}, started here, {why}{FETCH})"
    if RUN_ID.fullmatch(run):  # a whole id is pasted, not mistyped
        return f" (it may have been pruned{FETCH})"
    names = [name for queued in listing.queued for name in (queued.name, queued.run_id)]
    names += [name for known in reversed(listing.runs) for name in (known.name, known.run_id)]
    close = get_close_matches(run, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def is_found(run: str | None, inventory: str, listing: Listing) -> bool:
    """Whether `choose` finds a run. A host that has not answered may have a newer one."""
    try:
        choose(listing, run, inventory)
    except OrchError:
        return False
    return True


def is_known(run: str | None, inventory: str, listing: Listing) -> bool:
    """Whether the answers so far identify the run: it is named by its id, or it is unfinished.

    Otherwise one of them may have a newer run, also of the same name.
    """
    if run is None:
        return any(known.unfinished for known in listing.runs)
    if not is_found(run, inventory, listing):
        return False
    known = choose(listing, run, inventory)
    return known.run_id == run or known.unfinished


def is_complete(run: str | None, inventory: str, listing: Listing) -> bool:
    """As `is_known`, and all hosts of the run have answered."""
    return (
        run is not None
        and is_known(run, inventory, listing)
        and not listing.missing_hosts(choose(listing, run, inventory))
    )


def _missing(listing: Listing, message: str, what: str) -> OrchError:
    if listing.failed and not listing.answered:
        return UnreachableError(f"{fold(listing.failed)} could not be asked, so nothing is known of {what}")
    if listing.failed:
        return UnreachableError(f"{message}; {fold(listing.failed)} could not be asked")
    return UsageError(message)
