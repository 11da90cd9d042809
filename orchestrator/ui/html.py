"""Render a report as a single HTML file that needs no other file and no network. Pure."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from ..output.console import fold
from ..output.rates import Rates
from ..output.report_file import PAGE
from . import bands, log_section, page_style
from .event_rows import fold_ends
from .svg import chart, short

TRAINING = {
    "loss": "loss",
    "throughput": "samples per second of all ranks",
    "rate": "samples per second",
    "step_time": "step time, s",
}
NAVIGATION = (
    '<nav><a href="#training">Training</a><a href="#timeline">Timeline</a><a href="#machines">Machines</a>'
    '<a href="#command">Command</a><a href="#hosts">Hosts</a><a href="#logs">Logs</a></nav>'
)
MAX_LINES = 8  # of a chart in each attempt; with more, it shows the highest, the median and the lowest
GAP = 2.5  # times the interval of the samples of a host: after so long without one, its curve is interrupted
_SERIES = re.compile(r"attempt (\d+), rank (\d+)")  # a name of a line in Report.training
MACHINES = {
    "gpu": "GPU utilisation, %",
    "gpu_memory": "GPU memory of the fullest GPU, bytes",
    "watts": "power of all GPUs, W",
    "cpu": "CPU, %",
    "memory": "memory in use, %",
    "received": "network in, bytes/s",
    "sent": "network out, bytes/s",
    "read": "disk read, bytes/s",
    "written": "disk written, bytes/s",
}


def render(report: Mapping[str, Any]) -> str:
    """`report`: a commands.report.Report as a dict. All its text is escaped."""
    title = report["name"] if report["name"] == report["run_id"] else f"{report['name']} ({report['run_id']})"
    state = escape(report["state"])
    training = _with_throughput(report["training"])
    x_name = "step" if report["last_step"] is not None else "seconds"
    parts = [
        f'{PAGE}; {log_section.POLICY}">',
        f"<title>{escape(title)}: {state}</title><style>{page_style.STYLE}{log_section.STYLE}</style></head><body>",
        f'<h1>{escape(title)} <span class="state {state}">{state}</span></h1>',
        _diagnosis(report["diagnosis"], report["state"]),
        _bad_loss(report),
        _tiles(report, training),
        _attempts(report),
        NAVIGATION,
        _first_failure(report),
        _span(report),
        '<h2 id="training">Training</h2>',
        _charts(training, TRAINING, x_name) or _describe_no_figures(report),
        _heat_map(report["training"]["step_time"], x_name),
        _slow(report["slow_ranks"]),
        '<h2 id="timeline">Timeline</h2>',
        _timeline(report["timeline"]),
        '<h2 id="machines">Machines</h2>',
        _charts(report["machines"], MACHINES, "seconds") or '<p class="none">no data</p>',
        bands.use_map("GPU utilisation of each host", report["machines"]["gpu"], "seconds"),
        '<h2 id="command">Command</h2>',
        _command(report),
        '<h2 id="hosts">Hosts and versions</h2>',
        _versions(report["hosts"]),
        _hosts(report["hosts"]),
        '<h2 id="logs">Logs</h2>',
        log_section.render(report["log"]),
        "<details><summary>Configuration</summary>",
        f"<pre>{escape(json.dumps(report['config'], indent=2))}</pre></details>",
        f"<footer><small>{escape(_origin(report))}</small></footer>",
        f"<script>{log_section.SCRIPT}</script>" if report["log"] else "",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _span(report: Mapping[str, Any]) -> str:
    """The time that the page is limited to."""
    times = {word: report[key] for word, key in (("from", "since"), ("to", "until")) if report[key]}
    if not times:
        return ""
    words = " ".join(f"{word} {time[:19].replace('T', ' ')}" for word, time in times.items())
    return f"<p>Training, machines and logs: {escape(words)} (UTC)</p>"


def _describe_no_figures(report: Mapping[str, Any]) -> str:
    when = " at this time" if report["since"] or report["until"] else ""
    forms = "such as <code>step 120 loss 2.31</code> or a progress bar of tqdm"
    return f'<p class="none">The ranks printed no figures that ddp-orch knows{when}, {forms}.</p>'


def _command(report: Mapping[str, Any]) -> str:
    command = f"<pre>{escape(shlex.join(report['config']['command']))}</pre>"
    if not report["reproduce"]:
        return command
    return f"{command}<p>To run it again, on {escape(report['by'])}:</p><pre>{escape(report['reproduce'])}</pre>"


def _origin(report: Mapping[str, Any]) -> str:
    if not report["written_at"]:
        return ""
    return f"written {report['written_at'][:19].replace('T', ' ')} UTC by ddp-orch {report['version']}"


def _versions(hosts: Sequence[Mapping[str, Any]]) -> str:
    """A row per different environment."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host in hosts:
        if host["versions"]:
            groups.setdefault(tuple(host["versions"].items()), []).append(host["host"])
    names = list(dict.fromkeys(name for versions in groups for name, _ in versions))
    rows = [(fold(group), *(dict(versions).get(name) for name in names)) for versions, group in groups.items()]
    return _table(("hosts", *names), rows) if rows else ""


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> str:
    titles = ("host", "state", "exit code", "signal", "ranks", "GPUs", "cores", "memory", "python")
    table = _table(titles, map(_host_row, hosts))
    if len(hosts) <= MAX_LINES:
        return table
    return f"<details><summary>All {len(hosts)} hosts</summary>{table}</details>"


def _with_throughput(training: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same series, and the samples per second of all ranks together."""
    total = {}
    for attempt, ranks in _by_attempt(training["rate"]).items():
        at_step: dict[float, list[float]] = {}
        for points in ranks.values():
            for step, rate in points:
                at_step.setdefault(step, []).append(rate)
        # a step that only some ranks have printed would look like a drop
        whole = [(step, rates) for step, rates in sorted(at_step.items()) if len(rates) >= len(ranks)]
        known = Rates()
        for step, rates in whole:
            known.total([(step, rate) for rate in rates])
        total[f"attempt {attempt}"] = tuple(
            (step, known.total([(step, rate) for rate in rates])[0]) for step, rates in whole
        )
    shown = {name: points for name, points in total.items() if points}
    # of one rank that prints, both would be the same
    single = all(len(ranks) == 1 for ranks in _by_attempt(training["rate"]).values())
    return {**training, "throughput": shown, **({"rate": {}} if single else {})}


def _host_row(host: Mapping[str, Any]) -> Sequence[Any]:
    memory = None if host["memory"] is None else f"{host['memory'] / 2**30:.1f} GiB"
    values = (host[key] for key in ("host", "state", "exit_code", "signal", "nproc", "gpus", "cores"))
    return (*values, memory, host["python"])


def _tiles(report: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """The figures that a reader wants first."""
    ended = f"{report['ended_at'][:19].replace('T', ' ')}" if report["ended_at"] else ""
    newest_loss = _newest(training["loss"])
    step = report["last_step"]
    loss = report["last_loss"]
    loss_name = "last loss"
    if step is None and newest_loss is not None and isinstance(loss, float):
        loss_name += f", after {newest_loss[0]:.0f} s"
    rates = list(training["throughput"].values())
    tiles = {
        "started (UTC)": report["started_at"][:19].replace("T", " "),
        "ended (UTC)": ended,
        "duration": _duration(report),
        "attempts": str(report["attempts"]),
        "hosts": str(len(report["hosts"])),
        "ranks": str(report["ranks"]),
        "last step": "" if step is None else f"{step:g}",
        loss_name: f"{loss:.4g}" if isinstance(loss, float) else loss or "",
        "samples/s": short(rates[-1][-1][1]) if rates else "",
        "GPU hours": _gpu_hours(report),
        "started by": report["by"],
        "git commit": report["commit"],
    }
    shown = (
        f'<div class="tile"><b>{escape(text)}</b><span>{name}</span></div>' for name, text in tiles.items() if text
    )
    return f'<div class="tiles">{"".join(shown)}</div>'


def _gpu_hours(report: Mapping[str, Any]) -> str:
    gpus = sum(host["gpus"] or 0 for host in report["hosts"])
    seconds = _seconds(report)
    return f"{gpus * seconds / 3600:.3g}" if gpus and seconds is not None else ""


def _duration(report: Mapping[str, Any]) -> str:
    seconds = _seconds(report)
    return "" if seconds is None else str(timedelta(seconds=int(seconds)))


def _seconds(report: Mapping[str, Any]) -> float | None:
    if not report["ended_at"]:
        return None
    times = (datetime.fromisoformat(report[key].replace("Z", "+00:00")) for key in ("started_at", "ended_at"))
    try:
        start, end = times
    except ValueError:  # a host may send an invalid date
        return None
    return max(0.0, (end - start).total_seconds())


def _newest(losses: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[float, float] | None:
    """The step, or the seconds, and the last loss of the first rank of the last attempt."""
    for points in reversed(list(_by_attempt(losses).values())):
        x, y = points[min(points)][-1]
        return x, y
    return None


def _by_attempt(series: Mapping[str, Any]) -> dict[int, dict[int, Any]]:
    """Attempt -> rank -> points, in order."""
    found: dict[int, dict[int, Any]] = {}
    for name, points in series.items():
        if (match := _SERIES.fullmatch(name)) and points:
            found.setdefault(int(match[1]), {})[int(match[2])] = points
    return dict(sorted(found.items()))


def _attempts(report: Mapping[str, Any]) -> str:
    """An attempt ends with its first failure, or on its last host, and the run may wait before the next one begins."""
    timeline = report["timeline"]
    starts: list[float] = []
    ends: dict[int, float] = {}
    marks = {}
    for event in timeline:
        if event["kind"] == "attempt":
            starts.append(event["seconds"])
        elif event["kind"] == "failure":
            marks[event["seconds"]] = event["what"]
            ends.setdefault(len(starts), event["seconds"])
        elif event["kind"] == "end" and f": attempt {len(starts)}: " in event["what"]:
            ends[len(starts)] = event["seconds"]
    known = [event["seconds"] for event in timeline]
    known += [points[-1][0] for points in report["machines"]["memory"].values()]  # what still runs has no event yet
    end = max(known, default=0.0)
    stops = (ends.get(number, following) for number, following in enumerate([*starts[1:], end], 1))
    return bands.attempts(list(zip(starts, stops, strict=True)), marks, end)


def _first_failure(report: Mapping[str, Any]) -> str:
    first = report["first_failure"]
    if not first:
        return ""
    output = f"<pre>{escape(chr(10).join(report['said']))}</pre>" if report["said"] else ""
    what = f"First failure: {first['host']}: {first['what']}"
    return f"<details open><summary>{escape(what)}</summary>{output}</details>"


def _diagnosis(diagnosis: Mapping[str, Any], state: str) -> str:
    kind = "cause" if state in ("failed", "lost") else "card"
    parts = [f'<div class="{kind}">{_finding(finding)}</div>' for finding in diagnosis["findings"]]
    if not parts:
        return ""
    if diagnosis["consequences"]:
        rows = _consequences(diagnosis["consequences"])
        table = _table(("hosts", "ranks", "what"), rows, narrow=False)
        parts.append(f"<details><summary>Consequences</summary>{table}</details>")
    return "".join(parts)


def _bad_loss(report: Mapping[str, Any]) -> str:
    text = report["bad_loss"]
    return f'<div class="cause"><strong>warning: {escape(text)}</strong></div>' if text else ""


def _consequences(consequences: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[Any]]:
    """One row per message, ignoring numbers, because addresses, pids and times differ on every rank."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for consequence in consequences:
        groups.setdefault(re.sub(r"\d+", "0", consequence["message"]), []).append(consequence)
    for same in groups.values():
        hosts = fold(host for consequence in same for host in consequence["hosts"])
        ranks = fold(str(consequence["rank"]) for consequence in same if consequence["rank"] is not None)
        yield hosts, ranks.strip("[]"), same[0]["message"]


def _finding(finding: Mapping[str, Any]) -> str:
    where = ", ".join([*finding["hosts"], *([] if finding["rank"] is None else [f"rank {finding['rank']}"])])
    sure = f", confidence {finding['confidence']}" if finding["confidence"] else ""
    evidence = f"<pre>{escape(chr(10).join(finding['evidence']))}</pre>" if finding["evidence"] else ""
    fix = f"<p>Fix: {escape(finding['fix'])}</p>" if finding["fix"] else ""
    small = f"<small>({escape(finding['code'] + sure)})</small>"
    head = f"<strong>{escape(f'{where}: ' if where else '')}{escape(finding['message'])}</strong> {small}"
    return f"{head}{fix}{evidence}"


def _charts(series: Mapping[str, Any], titles: Mapping[str, str], x_name: str) -> str:
    gap = GAP if titles is MACHINES else math.inf
    shown = [
        chart(title, _few(series[name]), x_name, from_zero=name != "loss", gap=gap)
        for name, title in titles.items()
        if series[name]
    ]
    return f'<div class="charts">{"".join(shown)}</div>' if shown else ""


def _few(lines: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of many lines, the highest, the median and the lowest, for each attempt. The attempt is named if there are
    several.
    """
    groups = _by_attempt(lines)
    if not groups:  # hosts
        return bands.summarise(lines) if len(lines) > MAX_LINES else dict(sorted(lines.items()))
    shown: dict[str, Any] = {}
    for attempt, ranks in groups.items():
        before = f"attempt {attempt}, " if len(groups) > 1 else ""
        named = {f"rank {rank}": points for rank, points in sorted(ranks.items())}
        few = bands.summarise(named) if max(map(len, groups.values())) > MAX_LINES else named
        shown |= {f"{before}{name}": points for name, points in few.items()}
    return shown


def _heat_map(step_times: Mapping[str, Any], x_name: str) -> str:
    """The step times of the attempt with the most of them."""
    groups = _by_attempt(step_times)
    if not groups:
        return ""
    attempt, ranks = max(groups.items(), key=lambda item: sum(map(len, item[1].values())))
    title = "step time of each rank" + (f" in attempt {attempt}" if len(groups) > 1 else "")
    return bands.heat_map(title, ranks, x_name)


def _slow(ranks: Sequence[Mapping[str, Any]]) -> str:
    if not ranks:
        return ""
    rows = (
        (rank["rank"], rank["host"], f"{rank['step_time']:.4g} s", f"{rank['times_the_median']:.2f}") for rank in ranks
    )
    return "<h2>Slow ranks</h2>" + _table(("rank", "host", "mean step time", "times the median"), rows)


def _timeline(timeline: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr>{_cell(event['at'][:23].replace('T', ' '))}{_cell(format(event['seconds'], '.1f'))}"
        f'<td class="{escape(event["kind"])}">{escape(event["what"])}</td></tr>'
        for event in fold_ends(timeline)
    )
    return _framed(("time (UTC)", "after, s", "what"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, narrow: bool = True) -> str:
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return _framed(head, body, narrow=narrow)


def _framed(head: Sequence[str], body: str, *, narrow: bool = True) -> str:
    """`narrow`: only the last column has long texts, so the others are not broken into lines."""
    kind = ' class="rows"' if narrow else ""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f'<div class="scroll"><table{kind}><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    return f"<td>{'' if value is None else escape(str(value))}</td>"
