"""Draw the board of `top`: as many rows of hosts, ranks and newest lines as fit the screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.text import Text

from ..answers.recorded import RankSample
from ..answers.runs import FirstFailure, Part
from ..hosts import claims
from ..output.console import fold, fold_messages, number_of
from ..output.folding import ranges
from ..output.lines import Mask, presentable
from ..output.rates import Rates
from ..output.terminal import cut, one_line
from ..runs import waiting
from .board_rows import BoardRow, amount, clock, extremes, figures_of, losses_of, number, rates_of
from .board_table import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    RANK_COLUMNS,
    SLOW,
    STYLES,
    Scale,
    gpu_entries,
    host_entry,
    lines_of,
    rank_entry,
    scale_of,
)
from .curves import History, bar, epochs_of

HEALTHY = ("running", "succeeded", "spare", "witness", "left")
BROKEN = ("failed", "lost", "no answer", "no such run")
SORTS = ("auto", "host", "step", "step time", "GPU", "quiet")
"""`auto`: in the order of the inventory; if not all fit, hosts in trouble and slow ones first."""
PANE_MIN = 3  # lines that must be free below the table before the newest lines are shown there


@dataclass(frozen=True)
class Look:
    """What the user has chosen to see."""

    by_rank: bool = False
    host: str | None = None
    """Only this host, with its GPUs and ranks."""
    sort: str = "auto"
    marked: str | None = None
    """The host or rank under the cursor."""
    pane: bool | None = None
    """Show the newest lines below the table. None: if rows leave room; True: on a third of the screen at least."""


@dataclass(frozen=True)
class Screen:
    width: int
    height: int
    keys: str
    """The last line."""
    mask: Mask
    history: History | None = None
    """None: the terminal cannot show blocks, so there are no curves and bars."""
    look: Look = Look()

    def show(self, text: str) -> str:
        """Text of a host, safe and in one line."""
        return one_line(presentable(text, False, self.mask))


def render(run_id: str, rows: Sequence[BoardRow], screen: Screen) -> Text:
    """Draw the whole screen. If not all rows fit, one line names the rest."""
    scale = scale_of(rows)  # of all hosts, also if only one is shown
    if screen.look.host is not None:
        rows = [row for row in rows if row.host == screen.look.host]
    lines = _head(run_id, rows, screen)
    first = _first_failure(rows)
    below = [Text(screen.show(f"first failure: {first.host}: {first}"), style="bold red")] if first else []
    if troubles := fold_messages({row.host: row.trouble for row in rows if row.trouble}):
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        below.insert(0, Text(screen.show(troubles[0] + more), style="red"))
    keys = [Text(screen.keys, style="dim")] if screen.keys else []
    if screen.look.host is not None and rows:
        gpus = gpu_entries(rows[0], scale, screen.history)[: max(0, (screen.height - len(lines)) // 2 - 2)]
        lines += [*lines_of(GPU_COLUMNS, gpus, screen.width, screen.show, None), Text("")] if gpus else []
    by_rank = screen.look.by_rank or screen.look.host is not None
    reserved = max(PANE_MIN, screen.height // 3) if screen.look.pane else 0
    room = max(2, screen.height - len(lines) - 1 - len(below) - len(keys) - reserved)
    lines += _table(rows, scale, by_rank, room, screen)
    free = screen.height - len(lines) - len(below) - len(keys)
    if keys and free > 0:
        lines += _pane(rows, free, screen)
    elif not keys and not first:
        lines += _newest_line(rows, screen)
    lines += [*below, *keys]
    for line in lines:
        line.truncate(screen.width, overflow="ellipsis")
    return Text("\n").join(lines)


def order(rows: Sequence[BoardRow], look: Look, room: int) -> list[str]:
    """The keys of all rows of the table in the order in which it shows them."""
    by_rank = look.by_rank or look.host is not None
    if look.host is not None:
        rows = [row for row in rows if row.host == look.host]
    return [key for key, _ in (_ordered_ranks(rows, look, room) if by_rank else _ordered_hosts(rows, look, room))]


def _head(run_id: str, rows: Sequence[BoardRow], screen: Screen) -> list[Text]:
    training = _training([row for row in rows if row.part], screen.width, screen.history)
    lines = [_title(run_id, rows, screen.width), training]
    curves = screen.history.curves(screen.width) if screen.history else ""
    return [*lines, Text(curves, style="cyan")] if curves else lines


def _table(rows: Sequence[BoardRow], scale: Scale, by_rank: bool, room: int, screen: Screen) -> list[Text]:
    look = screen.look
    hosts, ranks = {}, {}
    if by_rank:
        ranks = dict(_ordered_ranks(rows, look, room))
    else:
        hosts = dict(_ordered_hosts(rows, look, room))
    keys = [*hosts, *ranks]
    start, count = _window(keys, look.marked, room)
    shown = keys[start : start + count]
    if by_rank:
        entries = [rank_entry(*ranks[key], scale, screen.history) for key in shown]
    else:
        entries = [host_entry(hosts[key], scale, screen.history) for key in shown]
    columns = RANK_COLUMNS if by_rank else HOST_COLUMNS
    lines = lines_of(columns, entries, screen.width, screen.show, look.marked)
    if hidden := [*keys[:start], *keys[start + count :]]:
        names = ranges(sorted(map(int, hidden))) if by_rank else f"{fold(hidden)} ({_states(rows, hidden)})"
        lines.append(Text(f"{len(hidden)} more: {names}", style="dim"))
    return lines


def _states(rows: Sequence[BoardRow], hosts: Sequence[str]) -> str:
    some = set(hosts)
    return ", ".join(sorted({row.state for row in rows if row.host in some}))


def _window(keys: Sequence[str], marked: str | None, room: int) -> tuple[int, int]:
    """The first visible row, and how many there are. The marked one is among them."""
    if len(keys) <= room:
        return 0, len(keys)
    count = room - 1  # one line names the rest
    place = keys.index(marked) if marked in keys else 0
    return max(0, min(place - count // 2, len(keys) - count)), count


def _ordered_hosts(rows: Sequence[BoardRow], look: Look, room: int) -> list[tuple[str, BoardRow]]:
    ordered = list(rows)
    first = _first_failure(rows)
    culprit = first.host if first else None
    if look.sort == "auto" and len(rows) > room:
        ordered.sort(key=lambda row: _trouble(row, culprit))
    elif look.sort == "host":
        ordered.sort(key=lambda row: row.host)
    elif look.sort != "auto":
        ordered.sort(key=lambda row: _sort_key(look.sort, [row], row.ranks))
    return [(row.host, row) for row in ordered]


def _ordered_ranks(rows: Sequence[BoardRow], look: Look, room: int) -> list[tuple[str, tuple[BoardRow, RankSample]]]:
    pairs = sorted(((row, rank) for row in rows for rank in row.ranks), key=lambda pair: pair[1].rank)
    if look.sort == "auto" and len(pairs) > room:
        pairs.sort(key=lambda pair: (pair[0].state not in BROKEN, *_sort_key("step", [pair[0]], [pair[1]])))
    elif look.sort == "host":
        pairs.sort(key=lambda pair: pair[0].host)
    elif look.sort != "auto":
        pairs.sort(key=lambda pair: _sort_key(look.sort, [pair[0]], [pair[1]]))
    return [(str(rank.rank), (row, rank)) for row, rank in pairs]


def _trouble(row: BoardRow, culprit: str | None) -> tuple[float, ...]:
    """The host of the first failure first, then failed and silent hosts, then hosts that stop; lowest step first."""
    group = 0 if row.host == culprit else 1 if row.state in BROKEN else 3 if row.state in HEALTHY else 2
    return group, *_sort_key("step", [row], row.ranks)


def _sort_key(sort: str, rows: Sequence[BoardRow], ranks: Sequence[RankSample]) -> tuple[float, ...]:
    """What is slow, idle or silent comes first; what is unknown last."""
    slowest = -max(figures_of(ranks, "step_time"), default=0.0)
    if sort == "step":
        return min(figures_of(ranks, "step"), default=float("inf")), slowest
    if sort == "step time":
        return (slowest,)
    if sort == "GPU":
        busy = [gpu.busy for row in rows if row.now for gpu in row.now.gpus if gpu.busy is not None]
        return (min(busy, default=float("inf")),)
    return (min((rank.at for rank in ranks if rank.at), default=float("inf")),)


def _first_failure(rows: Sequence[BoardRow]) -> FirstFailure | None:
    nodes = {row.host: row.node for row in rows if row.node is not None}
    verdict = claims.verdict_of({row.host: row.part for row in rows if row.part}, nodes)
    return verdict.first_failure if verdict else None


def _title(run_id: str, rows: Sequence[BoardRow], width: int) -> Text:
    in_run = [row for row in rows if row.node is not None and row.part]
    part, state, attempt = None, "asking", 0
    if parts := [row.part for row in in_run if row.part]:
        part, state, attempt = claims.state_of_run(parts)
    first = next((row for row in in_run if row.part is part), None)
    waits = next((each.waits for each in parts if each.unfinished and each.waits), None) if state == "waiting" else None
    doing = f"{waiting.describe_briefly(waits)} " if waits else state
    unreachable = sum(bool(row.trouble) for row in rows)
    ranks = sum(len(row.ranks) for row in rows)
    name = f" ({part.name})" if part and part.name != run_id else ""
    text = Text.assemble((f"{run_id}{name}", "bold"), "  ", (doing, STYLES.get(state, "green")))
    if first and first.now and part and (age := _age(part, first.now.clock)) is not None:
        text.append(f" {clock(age)}")
    if unreachable:
        text.append(f"  {unreachable} no answer", style="bold red")
    counts = f"  {number_of(len(rows), 'host')}, {number_of(ranks, 'rank')}"
    for words, style in (
        (counts, ""),
        (f"  attempt {attempt or '?'}", ""),
        (f"  {one_line(part.script)}" if part else "", "dim"),
    ):
        if text.cell_len + len(words) <= width:
            text.append(words, style=style)
    return text


def _age(part: Part, now: float) -> float | None:
    """Seconds that the run has taken so far, or took."""
    try:
        started = datetime.fromisoformat(part.started_at.replace("Z", "+00:00")).timestamp()
    except ValueError:  # a host may send an invalid date
        return None
    return max(0.0, (now if part.ended_at is None else part.ended_at) - started)


def _training(rows: Sequence[BoardRow], width: int, history: History | None) -> Text:
    pairs = [(row, rank) for row in rows for rank in row.ranks]
    samples = [rank for _, rank in pairs]
    words = {}
    for name, form in (("step", "step {}"), ("loss", "loss {}"), ("rate", "{}/s"), ("step_time", "{} s/step")):
        values = losses_of(samples) if name == "loss" else figures_of(samples, name)
        if values:
            low, high = map(amount if name == "rate" else number, extremes(values))
            words[name] = form.format(low if low == high else f"{low}..{high}")
    if "step" in words:
        words["step"] += _progress(samples, history)
    rates = rates_of(samples)
    if len(rates) > 1:
        total, is_printed = (history.rates if history else Rates()).total(rates)
        each = words["rate"]
        of_each = f"{each} on each of {len(rates)} ranks"
        words["rate"] = of_each if is_printed else f"{amount(total)}/s in total ({each})"
    timed = sorted(
        (rank.figures["step_time"], rank.rank, row.host) for row, rank in pairs if "step_time" in rank.figures
    )
    if timed and timed[-1][0] > SLOW * timed[len(timed) // 2][0]:
        words["slowest"] = f"slowest rank {timed[-1][1]} ({timed[-1][2]})"
    watts = [gpu.watts for row in rows if row.now for gpu in row.now.gpus if gpu.watts is not None]
    if watts:
        words["watts"] = f"{sum(watts) / 1000:.1f} kW" if sum(watts) >= 1000 else f"{sum(watts):.0f} W"
    if not words:
        if any(rank.last for rank in samples):
            return Text("no step or loss in the ranks' last lines")
        others = any(row.trouble for row in rows)  # which may have lines
        return Text("no rank" + " on the hosts that answer" * others + " has printed a line")
    text = ""
    for word in words.values():
        if not text or len(text) + 2 + len(word) <= width:
            text += f"  {word}" if text else word
    return Text(text)


def _progress(samples: Sequence[RankSample], history: History | None) -> str:
    """`/5000 ▕███     ▏ 24%  ETA 6:58:00`, or `/10 ▕████    ▏ 40% of this epoch`.

    "" if the number of steps is unknown.
    """
    totals, steps = figures_of(samples, "total"), figures_of(samples, "step")
    if not totals or max(totals) <= 0:
        return ""
    total, step = max(totals), min(steps)
    share = min(1.0, step / total)
    drawn = f" ▕{bar(share, 10)}▏" if history else ""
    if (history.epochs if history else epochs_of(samples)).has(total):
        return f"/{number(total)}{drawn} {share:.0%} of this epoch"
    seconds = max(figures_of(samples, "step_time"), default=0.0) * (total - step)
    return f"/{number(total)}{drawn} {share:.0%}" + (f"  ETA {clock(seconds)}" if seconds > 0 else "")


def _pane(rows: Sequence[BoardRow], free: int, screen: Screen) -> list[Text]:
    """The newest lines of these hosts, in so many lines of the screen."""
    if screen.history is None or screen.look.pane is False or free < PANE_MIN:
        return [Text("")] * (free - 1) + _newest_line(rows, screen)
    hosts = {row.host for row in rows}
    lines = [pair for pair in screen.history.lines if pair[0] in hosts][-(free - 1) :]
    rule = "─── newest lines "
    drawn = [Text(rule + "─" * max(0, screen.width - len(rule)), style="dim")]
    for host, rank in lines:
        tag = f"{host}:{rank.rank} │ "
        drawn.append(Text.assemble((tag, "cyan"), cut(screen.show(rank.last), max(0, screen.width - len(tag)))))
    return drawn + [Text("")] * (free - len(drawn))


def _newest_line(rows: Sequence[BoardRow], screen: Screen) -> list[Text]:
    pairs = [(row.host, rank) for row in rows for rank in row.ranks if rank.last]
    newest = max(pairs, key=lambda pair: pair[1].at, default=None)
    if newest is None:
        return [Text("")]
    host, rank = newest
    return [Text(cut(screen.show(f"{host}:{rank.rank} | {rank.last}"), screen.width), style="dim")]
