"""`notify --test`: have the head send a test message, and report problems."""

from __future__ import annotations

from ..answers.prepare import NOTIFY
from ..errors import FindingsError, UnreachableError, UsageError
from ..hosts.fleet import fold_failures
from ..plan import plan
from .context import load_inventory, open_fleet, stderr_console


def test(inventory_path: str | None) -> int:
    """Exit code 3 if the message could not be sent."""
    console = stderr_console()
    inventory = load_inventory(inventory_path)
    notify = inventory.notify
    targets = {"webhook": notify.webhook, "mail": notify.mail, "command": notify.command}
    configured = [what for what, value in targets.items() if value]
    if not configured:
        raise UsageError(f"{inventory.path}: notify has no webhook, mail or command. Set one of them to test it.")
    head = plan.order(inventory)[0]
    message = {
        "text": f"ddp-orch: test message from {head.name}: the end of a run is reported here",
        "run_id": None,
        "name": None,
        "state": "test",
        "attempt": 0,
        "hosts": [host.name for host in inventory.hosts],
        "first_failure": None,
    }
    with open_fleet(inventory) as fleet:
        fleet.prepare([head])
        question = {"wanted": targets, "said": message}
        results = fleet.each([head], lambda _, session: session.request(NOTIFY, question), "notifying")
    for line in fold_failures(results.failed):
        console.error(line)
    if results.failed:
        return UnreachableError.exit_code
    problems = results.done[head.name].problems
    for what in configured:
        if what in problems:
            console.error(f"{head.name}: notify.{what} failed: {problems[what]}")
        else:
            console.note(f"{head.name}: notify.{what} accepted the message")
    return FindingsError.exit_code if problems else 0
