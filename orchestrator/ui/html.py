"""Render a report as a single HTML file without scripts or links to other files. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..output.console import fold, number_of
from .svg import chart, short

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.state { display: inline-block; padding: .1rem .6rem; border-radius: .3rem; color: #fff; background: #555; }
.succeeded { background: #00734f; } .failed, .lost { background: #b3261e; } .killed, .stopped { background: #8a5a00; }
.running, .starting, .suspect, .restarting, .waiting, .stopping { background: #0060a0; }
.cause { border-left: 4px solid #b3261e; background: #fdf0ef; padding: .6rem 1rem; margin: 1rem 0; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #999; } td.number, th.number { text-align: right; }
pre { background: #f5f5f5; padding: .7rem; font-size: 13px; white-space: pre-wrap; word-break: break-word; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; flex: 1 1 520px; max-width: 580px; }
figcaption { font-weight: 600; } small { font-weight: normal; color: #444; } .none { color: #666; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #444; }
polyline { fill: none; stroke-width: 1.5; } .grid { stroke: #ddd; } .mark { stroke: #b3261e; stroke-dasharray: 4 3; }
"""

HEAD = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
"""The start of every report. `report` recognises its own files by it."""

TRAINING = {"loss": "loss", "rate": "samples per second", "step_time": "step time, s"}
MACHINES = {
    "gpu": "GPU utilisation, %",
    "gpu_memory": "GPU memory of the fullest GPU, bytes",
    "watts": "power of all GPUs, W",
    "cpu": "CPU, %",
    "received": "network in, bytes/s",
    "sent": "network out, bytes/s",
}


def render(report: Mapping[str, Any]) -> str:
    """`report`: a commands.report.Report as a dict. All its text is escaped."""
    title = report["name"] if report["name"] == report["run_id"] else f"{report['name']} ({report['run_id']})"
    parts = [
        HEAD,
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p><span class="state {escape(report["state"])}">{escape(report["state"])}</span> {_summary(report)}</p>',
        _cause(report),
        _diagnosis(report["diagnosis"]),
        "<h2>Training</h2>",
        _charts(report, "training", TRAINING, "step"),
        _slow(report["slow_ranks"]),
        "<h2>Timeline</h2>",
        _table(("time (UTC)", "after, s", "what"), _timeline(report["timeline"])),
        "<h2>Hosts</h2>",
        _table(
            ("host", "state", "exit code", "signal", "ranks", "GPUs", "cores", "memory", "python"),
            map(_host_row, report["hosts"]),
        ),
        "<h2>Machines</h2>",
        _charts(report, "machines", MACHINES, "seconds"),
        "<h2>Configuration</h2>",
        f"<pre>{escape(json.dumps(report['config'], indent=2))}</pre>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _host_row(host: Mapping[str, Any]) -> Sequence[Any]:
    memory = None if host["memory"] is None else short(host["memory"])
    values = (host[key] for key in ("host", "state", "exit_code", "signal", "nproc", "gpus", "cores"))
    return (*values, memory, host["python"])


def _summary(report: Mapping[str, Any]) -> str:
    ended = f"ended {report['ended_at'][:19]}Z" if report["ended_at"] else "not finished yet"
    attempts = number_of(report["attempts"], "attempt")
    words = (
        f"started {report['started_at'][:19]}Z by {report['by']}",
        ended,
        f"{len(report['hosts'])} hosts",
        f"{report['ranks']} ranks",
        attempts,
    )
    return escape(", ".join(words))


def _cause(report: Mapping[str, Any]) -> str:
    first = report["first_failure"]
    if not first:
        return ""
    output = f"<pre>{escape(chr(10).join(report['said']))}</pre>" if report["said"] else ""
    what = f"First failure: {first['host']}: {first['what']}"
    return f'<div class="cause"><strong>{escape(what)}</strong>{output}</div>'


def _diagnosis(diagnosis: Mapping[str, Any]) -> str:
    findings = [_finding(finding) for finding in diagnosis["findings"]]
    if not findings:
        return ""
    parts = ["<h2>Diagnosis</h2>", *findings]
    if diagnosis["consequences"]:
        rows = _consequences(diagnosis["consequences"])
        parts.append("<p>Consequences:</p>" + _table(("hosts", "ranks", "what"), rows))
    return "".join(parts)


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
    where = ", ".join(finding["hosts"]) + ("" if finding["rank"] is None else f", rank {finding['rank']}")
    sure = f", confidence {finding['confidence']}" if finding["confidence"] else ""
    evidence = f"<pre>{escape(chr(10).join(finding['evidence']))}</pre>" if finding["evidence"] else ""
    fix = f"<p>{escape(finding['fix'])}</p>" if finding["fix"] else ""
    small = f"<small>({escape(finding['code'] + sure)})</small>"
    head = f"<strong>{escape(where)}: {escape(finding['message'])}</strong> {small}"
    return f"<div>{head}{evidence}{fix}</div>"


def _charts(report: Mapping[str, Any], group: str, titles: Mapping[str, str], x_name: str) -> str:
    series = report[group]
    shown = [chart(title, series[name], x_name) for name, title in titles.items() if series[name]]
    if not shown:
        return '<p class="none">no data</p>'
    return f'<div class="charts">{"".join(shown)}</div>'


def _slow(ranks: Sequence[Mapping[str, Any]]) -> str:
    if not ranks:
        return ""
    rows = ((rank["rank"], f"{rank['step_time']:.4g} s", f"{rank['times_the_median']:.2f}") for rank in ranks)
    return "<h2>Slow ranks</h2>" + _table(("rank", "mean step time", "times the median"), rows)


def _timeline(timeline: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[Any]]:
    return ((event["at"][:23].replace("T", " "), f"{event['seconds']:.1f}", event["what"]) for event in timeline)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return f"<td>{'' if value is None else escape(str(value))}</td>"
