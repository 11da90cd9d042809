"""Check the keys of an inventory that say what becomes of a run when a host is lost or restarted. No IO."""

from __future__ import annotations

from typing import Any

from .values import Reading

MIN_VOTERS = 3
"""Machines of which a majority is left when one is lost."""


def check(inventory: Any, reading: Reading) -> None:
    """`inventory`: a `model.Inventory`."""
    _check_election(inventory, reading)
    run = inventory.run
    if message := refuse_resume(run):
        reading.wrong(reading.marks["run.resume"], "run.resume", message)
    if run.autostart == "none":
        return
    key = "run.autostart"
    if not (run.max_restarts and run.rejoin_timeout):
        reading.wrong(reading.marks[key], key, "no run waits for a host without run.max_restarts; set it, such as to 3")
    if run.secrets:
        message = (
            "secrets are not written to a disk, so a rebooted host cannot get them by itself; remove run.secrets or "
            "run.autostart. Without it, `ddp-orch logs -f` and `ddp-orch revive` bring hosts back, with their secrets"
        )
        reading.wrong(reading.marks[key], key, message)


def refuse_resume(run: Any) -> str | None:
    """Why `run.resume` cannot be had with the rendezvous of a `model.Run`."""
    if run.resume != "head" or run.rdzv.backend != "c10d":
        return None
    return "with rdzv.backend c10d, rank 0 may run on another host than the head; use newest or union, or static"


def _check_election(inventory: Any, reading: Reading) -> None:
    run = inventory.run
    key = "run.head_lost" if run.head_lost == "elect" else "run.witness"
    if run.witness is not None and run.witness.name in (host.name for host in inventory.hosts):
        message = f"{run.witness.name} is one of the hosts; a witness is another machine"
        reading.wrong(reading.marks["run.witness"], "run.witness", message)
    elif run.witness is not None and run.head_lost == "stop":
        message = "no head is elected with run.head_lost: stop; set that to elect, or remove the witness"
        reading.wrong(reading.marks["run.witness"], "run.witness", message)
    elif (run.witness is not None or run.head_lost == "elect") and (why := _why_no_election(inventory)):
        reading.wrong(reading.marks[key], key, why)


def _why_no_election(inventory: Any) -> str:
    """Why the hosts cannot elect another head; "" if they can."""
    if len(inventory.machines) < MIN_VOTERS:
        if inventory.run.witness:
            return "no other host can lead if the only one is lost; add a host, or remove the witness"
        return "of two hosts, none is a majority when the other is lost; set run.witness, add a host, or use stop"
    if not (inventory.run.max_restarts and inventory.run.rejoin_timeout):
        return "no run continues after a lost host without run.max_restarts; set it, such as to 3"
    return ""


def can_become_electing(inventory: Any, voters: int) -> bool:
    """Whether a run of so many machines elects a head as soon as `add` makes them enough. Until then, its head leads.

    Only on request: the ranks of such a run endure shorter cuts of the network than with `head_lost: stop`.
    """
    return inventory.run.head_lost == "elect" and voters == MIN_VOTERS - 1 and elects(inventory, MIN_VOTERS)


def elects(inventory: Any, voters: int) -> bool:
    """Whether so many machines elect another head when theirs is lost."""
    run = inventory.run
    return run.head_lost != "stop" and voters >= MIN_VOTERS and bool(run.max_restarts and run.rejoin_timeout)
