"""`describe`: one page about a run, from the records on its hosts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..answers.recorded import RECORD, Drain, Event, Record, Spec
from ..inventory import advice
from ..inventory.model import Inventory
from ..inventory.recovery import MIN_VOTERS
from ..output.console import number_of
from ..output.lines import Mask, presentable, rfc3339, whole_seconds
from ..plan import accelerate
from ..plan.run_program import without_program
from ..runs import recent, registry, rejoining, resume_command, timeline, waiting
from ..ui.event_rows import fold_ends
from .context import (
    credentials_of,
    find_run,
    load_inventory_of_run,
    open_fleet,
    secret_values,
    stderr_console,
    warn_of_failures,
)

NEWEST_EVENTS = 8  # shown; `events` shows all
MOST_FOLDERS = 4  # hosts whose folders are shown; --json has all


def describe(run_name: str | None, inventory_path: str | None, hosts: str | None, *, as_json: bool) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        lookup = find_run(fleet, inventory, run_name, console)
        run = lookup.run
        machines = [host for host in inventory.machines if host.name in run.parts]
        question = {"run_id": run.run_id}
        answers = fleet.each(machines, lambda _, session: session.request(RECORD, question), "reading its record")
    warn_of_failures(answers.failed, console)
    mask = Mask([*secret_values(inventory, run, console), *credentials_of(answers.done.values())])
    page = make_page(run, answers.done, inventory, mask)
    if as_json:
        print(json.dumps(page, indent=2))
        return 0
    about = advice.about(run, lookup.listing.runs, inventory.path)
    missing = lookup.listing.missing_hosts(run)
    for line in _lines(
        page,
        about.command("events"),
        missing,
        lookup.listing.without_record(run),
        [host for host in sorted(run.drained) if host not in run.parts],
        [host for host in missing if host not in lookup.listing.failed],
    ):
        print(line)
    rejoining.note(run, about.command("kill"), console)
    waiting.note_unaware(run, about.command("kill"), console)
    commands = [restart] if (restart := waiting.restart_without(run, about)) else []
    commands += [about.command(*words) for words in _next(run)]
    if run.state != "succeeded" and run.is_over and recent.command_of(run.run_id) is not None:
        commands.append(resume_command.choose(about.command("restart"), run.parts, missing).command)
    print("\n".join(["next:", *(f"  {command}" for command in commands)]))
    return 0


def _next(run: registry.Run) -> Sequence[tuple[str, ...]]:
    """The commands that may come next."""
    if run.unfinished:
        revive = [("revive",)] if run.without_guard or run.state == "waiting" else []
        return [*revive, ("logs", "-f"), ("top",), ("kill",)]
    if run.rejoining:
        return [("logs", "-f"), ("diagnose",), ("kill",)]
    return [("logs",), ("diagnose",), ("report",), ("fetch",)]


def make_page(run: registry.Run, records: Mapping[str, Record], inventory: Inventory, mask: Mask) -> dict[str, Any]:
    """The document of `describe --json`."""

    def shown(text: object) -> str:
        return presentable(str(text), False, mask)

    source = timeline.source(run.nodes, run.head, records)
    record = timeline.complete(run, records[source] if source else None, records.values())
    spec = record.spec if record else None
    started = recent.started(run.run_id)
    events = timeline.history(run, record)
    code = spec.code if spec and isinstance(spec.code, dict) else {}
    return {
        **run.as_dict(),
        "attempt": timeline.newest_attempt(run, events),
        "by": shown(run.by),
        "ended_at": None if run.unfinished or run.ended_at is None else rfc3339(run.ended_at),
        "inventory": started.inventory if started else inventory.path,
        "command": shown(shlex.join(command_of(spec))) if spec else shown(run.script),
        "python": shown(spec.python) if spec else None,
        "launcher": _launcher(spec.launcher) if spec else None,
        "setup": [shown(line) for line in spec.setup or ()] if spec else [],
        "workdir": spec.workdir if spec else None,
        "code": _code(code, started.code if started else "") if code else None,
        "max_restarts": spec.max_restarts if spec else None,
        "head": next((host for host, number in run.all_nodes.items() if number == run.head), None),
        "if_head_lost": _if_head_lost(run, spec, record.events) if record and spec else None,
        "ranks": {host: [part.first_rank, part.nproc] for host, part in run.parts.items() if host not in run.left},
        "first_failure": shown(failure) if (failure := _first_failure(run, record)) else None,
        "events": [{"at": rfc3339(entry.at), "kind": entry.kind, "what": shown(entry.what)} for entry in events],
        "files": {
            host: {"record": shown(record.folder), "outputs": shown(record.output) if record.output else None}
            for host, record in records.items()
            if record.folder
        },
    }


HEAD_LOST = {
    "elect": "if it is lost, the others elect another head",
    "wait": "if it is lost, the others wait for it",
    "end": "if it is lost, the run ends",
}


def _if_head_lost(run: registry.Run, spec: Spec, events: Sequence[Event] = ()) -> str | None:
    """What the others do, by a key of HEAD_LOST. None: there are no others, or the run is over."""
    drained = {event.fields.node for event in events if isinstance(event, Drain)}
    members = [host for host, node in run.all_nodes.items() if host not in run.left and node not in drained]
    if not run.unfinished or len(members) == 1:
        return None
    others = [host for host, part in run.parts.items() if part.unfinished and not part.lacks_guard]
    left = [host for host in others if host in members and run.all_nodes[host] != run.head]
    if spec.head_lost == "elect" and len(members) >= MIN_VOTERS and 2 * len(left) > len(members):
        return "elect"
    return "wait" if spec.rejoin_timeout else "end"


def _describe_head(page: Mapping[str, Any]) -> str | None:
    then = page["if_head_lost"]
    if page["waits"] and page["head"] in page["waits"]["hosts"]:
        return f"{page['head']}; it is lost, and the others wait for it"
    return f"{page['head']}; {HEAD_LOST[then]}" if then and page["head"] else None


def _describe_wait(page: Mapping[str, Any]) -> str | None:
    if page["waits"]:
        return waiting.describe(**page["waits"])
    return "other hosts; which ones is not known yet" if page["state"] == "waiting" else None


def _code(code: Mapping[str, Any], folder_here: str) -> dict[str, Any]:
    return {"folder_here": folder_here, **{name: code.get(name) for name in ("sha256", "commit", "changed")}}


def describe_commit(code: Mapping[str, Any]) -> str:
    """The commit of the code that was sent, for people; "" if it is not known. `code`: of a spec, sent by a host."""
    commit, changed = code.get("commit"), code.get("changed")
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        return ""
    return commit[:12] + (f", {number_of(changed, 'file')} changed" if isinstance(changed, int) and changed else "")


def command_of(spec: Spec) -> Sequence[str]:
    """The command that the user gave, without the launcher and its flags."""
    command = without_program(spec.command)
    if _launcher(spec.launcher) == "accelerate":
        return accelerate.split_flags(command)[1] or command
    return command


def _launcher(launcher: Any) -> str | None:
    name = launcher.get("name") if isinstance(launcher, dict) else launcher
    return name if isinstance(name, str) else None


def _first_failure(run: registry.Run, record: Record | None) -> str | None:
    """That of the run. While it goes on: of its newest attempt, if that has ended."""
    for part in run.parts.values():
        failure = part.verdict.first_failure if part.verdict else None
        if failure is not None:
            return f"{failure.host}: {failure}"
    if record is None or record.run is None:
        return None
    failures = timeline.first_failures(record.events, record.run.hosts)
    head = next((host for host, node in run.all_nodes.items() if node == run.head), "")
    if not failures and run.waits and head in run.waits.hosts:
        return f"{head}: head lost"  # no other host records events then
    return failures.get(record.run.attempt)


def _lines(
    page: Mapping[str, Any],
    all_events: str,
    missing: Sequence[str] = (),
    without_record: Sequence[str] = (),
    drained: Sequence[str] = (),
    unasked: Sequence[str] = (),
) -> Sequence[str]:
    """`all_events`: the command that shows them. `missing`: hosts of the run that did not answer. `without_record`:
    hosts that answered without it. `drained`: hosts that have left the run, and gave no answer about it. `unasked`:
    those of `missing` that --hosts or the inventory leaves out.
    """
    attempts = f", {number_of(page['attempt'], 'attempt')}"
    if page["max_restarts"]:
        attempts += f" (run.max_restarts: {page['max_restarts']})"
    rows = {
        "Run": page["run_id"] if page["name"] == page["run_id"] else f"{page['name']} ({page['run_id']})",
        "State": page["state"] + attempts,
        "Waits for": _describe_wait(page),
        "Head": _describe_head(page),
        "Started": f"{whole_seconds(page['started_at'])} by {page['by']}",
        "Ended": page["ended_at"] and whole_seconds(page["ended_at"]),
        "First failure": page["first_failure"],
        "Command": page["command"],
        "Launcher": page["launcher"],
        "Setup": "; ".join(page["setup"]),
        "Inventory": page["inventory"],
        "Code": page["workdir"] or (page["code"] and page["code"]["folder_here"]),
        "Commit": page["code"] and describe_commit(page["code"]),
    }
    lines = [f"{name + ':':<15}{value}" for name, value in rows.items() if value]
    lines += ["", f"{'HOST':<20} {'ROLE':<7} {'NODE':>4} {'RANKS':>9}  {'STATE':<10} EXIT"]
    for node in page["nodes"]:
        if node["state"] == "lost" != page["state"]:  # it was rebooted, and has only the record of an older attempt
            lines.append(f"{node['host']:<20} {'-':<7} {'-':>4} {'-':>9}  lost")
            continue
        first, count = page["ranks"].get(node["host"], (None, 0))
        ranks = "-" if first is None or node["witness"] else f"{first}-{first + count - 1}" if count > 1 else str(first)
        exits = node["signal"] or ("" if node["exit_code"] is None else node["exit_code"])
        number = "-" if node["node_rank"] is None else node["node_rank"]
        place = f"{node['role']:<7} {number:>4} {ranks:>9}"
        why = f"not used: {', '.join(node['unfit'])}" if node["unfit"] else exits
        lines.append(f"{node['host']:<20} {place}  {node['state']:<10} {why}".rstrip())
    for host in missing:
        suspect = "suspect, " if host in page["suspects"] else ""
        answer = "not asked" if host in unasked else f"{suspect}no answer"
        lines.append(f"{host:<20} {'-':<7} {'-':>4} {'-':>9}  {answer}")
    lines += [f"{host:<20} {'-':<7} {'-':>4} {'-':>9}  no record" for host in without_record]
    lines += [f"{host:<20} {'left':<7} {'-':>4} {'-':>9}  drained" for host in drained]
    if events := fold_ends(page["events"]):
        left_out = len(events) - NEWEST_EVENTS
        lines += [
            "",
            "Events" + (f" (the last {NEWEST_EVENTS}; all: {all_events}):" if left_out > 0 else ":"),
        ]
        lines += [f"  {whole_seconds(event['at'])}  {event['what']}" for event in events[-NEWEST_EVENTS:]]
    if page["files"]:
        lines += ["", "Files on the hosts (record and log; outputs):"]
        hosts = list(page["files"])
        for host in hosts[:MOST_FOLDERS]:
            files = page["files"][host]
            lines += [
                f"  {host}:",
                f"    {files['record']}",
                *([f"    {files['outputs']}"] if files["outputs"] else []),
            ]
        if len(hosts) > MOST_FOLDERS:
            lines.append(f"  and on {number_of(len(hosts) - MOST_FOLDERS, 'more host')}: see describe --json")
    return [*lines, ""]
