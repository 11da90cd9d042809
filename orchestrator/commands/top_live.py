"""The board of `top` on a terminal, and its keys."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from rich.console import Console as Rich
from rich.live import Live
from rich.text import Text

from ..errors import OrchError
from ..hosts.fleet import Fleet
from ..inventory.hostnames import pick
from ..inventory.model import Host
from ..output.console import Console, wants_colour
from ..output.lines import Mask
from ..runs import ending, registry
from . import kill
from .board import SORTS, Look, Screen, order, render
from .curves import History

if TYPE_CHECKING:
    from .board_rows import BoardRow

REDRAW_INTERVAL = 2.0  # s, as between samples of a host
WIDE = 100  # columns, from which on all keys have room
RESIZE_INTERVAL = 0.25  # s between looks at the size of the terminal

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END, ENTER, ESCAPE = "up", "down", "pgup", "pgdn", "home", "end", "enter", "esc"
_SEQUENCES = {
    "[A": UP, "OA": UP, "[B": DOWN, "OB": DOWN, "[5~": PAGE_UP, "[6~": PAGE_DOWN, "[H": HOME, "[F": END,
    "[1~": HOME, "[4~": END, "OH": HOME, "OF": END,
}  # fmt: skip
_CHARACTERS = {"\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": ESCAPE}
HELP = """\
  q, Ctrl-C       leave; the run continues
  up, down        mark a row; page up, page down, home, end move faster
  Enter           show the marked host alone, with its GPUs and ranks; Esc: all
  v               a row per rank, or a row per host
  s               sort: auto, host, step, step time, GPU, quiet
                  auto: trouble first if not all rows fit
  f, /            show only some hosts
  p               newest lines: where rows leave room, more of them, or none
  l               follow the log of some ranks
  d               diagnose the run
  k               kill the run, after you type its id

  Yellow: more than 1.05 times the median step time (red: 1.3); a GPU with less
  than half of the median load; memory more than 95 % full; QUIET if no rank has
  printed a line for a minute. LOAD and TREND show how the load, or a step time,
  has changed.

  Press any key to return to the board."""


class Source(Protocol):
    """Gives the newest state of all hosts."""

    hosts: list[Host]
    news: str
    """Something to tell the user; "" if there is nothing."""

    def rows(self) -> list[BoardRow]: ...


class LiveBoard:
    """Draws the board until the user leaves."""

    def __init__(
        self,
        source: Source,
        run: registry.Run,
        fleet: Fleet,
        inventory: str,
        mask: Mask,
        console: Console,
    ) -> None:
        self._source = source
        self._run = run
        self._fleet = fleet
        self._inventory = inventory
        self._mask = mask
        self._console = console
        self._pattern = ""
        self._look = Look()
        self._history = History()
        # asked now, because rich replaces stdout by an object without an encoding while it draws
        self._shows_blocks = (sys.stdout.encoding or "").lower().startswith("utf")

    def show(self) -> None:
        actions = {"l": self._log, "f": self._filter, "/": self._filter, "d": self._diagnose, "k": self._kill}
        while (key := self._board()) != "q":
            with self._rich().screen(hide_cursor=False):  # the dialog disappears afterwards
                actions[key]()

    def _rich(self) -> Rich:
        return Rich(file=sys.stdout, no_color=not wants_colour(sys.stdout, os.environ), highlight=False)

    def _board(self) -> str:
        """Draw until a key is pressed that leaves the board."""
        with _keys() as pressed, Live(console=self._rich(), screen=True, auto_refresh=False) as live:
            sampled_at = -REDRAW_INTERVAL
            while True:
                if time.monotonic() >= sampled_at + REDRAW_INTERVAL:
                    sampled_at = time.monotonic()
                    self._history.add([row for row in self._source.rows() if not row.trouble])
                size = shutil.get_terminal_size()
                self._draw(live, size)
                key = ""
                while not key and size == shutil.get_terminal_size():
                    if time.monotonic() >= sampled_at + REDRAW_INTERVAL:
                        break
                    key = pressed(RESIZE_INTERVAL)
                if key == "?":
                    live.update(Text(HELP), refresh=True)
                    while not pressed(RESIZE_INTERVAL):
                        pass
                elif key and key in "ql/fdk":
                    return key
                elif key:
                    self._look = self._after(key, size.lines)

    def _after(self, key: str, height: int) -> Look:
        """What the user sees after this key."""
        look = self._look
        match key:
            case "v":
                return replace(look, by_rank=not look.by_rank, host=None, marked=None)
            case "s":
                return replace(look, sort=SORTS[(SORTS.index(look.sort) + 1) % len(SORTS)], marked=None)
            case "p":
                return replace(look, pane={None: True, True: False, False: None}[look.pane])
            case "enter":
                return replace(look, host=self._marked_host(), marked=None) if look.marked else look
            case "esc":
                return replace(look, host=None, marked=None)
            case "up" | "down" | "pgup" | "pgdn" | "home" | "end":
                return replace(look, marked=self._move(key, height))
        return look

    def _move(self, key: str, height: int) -> str | None:
        keys = order(self._rows(), self._look, max(2, height - 5))
        if not keys:
            return None
        if self._look.marked not in keys:
            return keys[-1] if key == END else keys[0]
        page = max(1, height // 2)
        steps = {UP: -1, DOWN: 1, PAGE_UP: -page, PAGE_DOWN: page, HOME: -len(keys), END: len(keys)}
        return keys[max(0, min(len(keys) - 1, keys.index(self._look.marked) + steps[key]))]

    def _marked_host(self) -> str | None:
        if not self._look.by_rank and self._look.host is None:
            return self._look.marked
        ranks = ((row.host, str(rank.rank)) for row in self._rows() for rank in row.ranks)
        return next((host for host, rank in ranks if rank == self._look.marked), None)

    def _draw(self, live: Live, size: os.terminal_size) -> None:
        width, height = size
        history = self._history if self._shows_blocks else None
        screen = Screen(width, height, self._footer(width), self._mask, history, self._look)
        live.update(render(self._run.run_id, self._rows(), screen), refresh=True)

    def _rows(self) -> list[BoardRow]:
        selected = self._selected_hosts()
        return [row for row in self._source.rows() if row.host in selected]

    def _footer(self, width: int) -> str:
        look = self._look
        enter = "Esc all" if look.host else "⏎ host" if self._shows_blocks else "Enter host"
        keys = f"q quit  ? help  {enter}  v {'hosts' if look.by_rank else 'ranks'}  s {look.sort}  "
        keys += "f filter  p lines  l log  k kill"
        if width >= WIDE:
            keys = keys.replace("  s ", "  s sort: ").replace("  k kill", "  d diagnose  k kill")
        if self._source.news:
            keys = f"{self._source.news}   {keys}"
        if not self._pattern:
            return keys
        return f"only {self._pattern}: {len(self._selected_hosts())} of {len(self._source.hosts)} hosts   {keys}"

    def _selected_hosts(self) -> set[str]:
        names = [host.name for host in self._source.hosts]
        return set(pick(names, self._pattern) if self._pattern else names)

    def _log(self) -> None:
        from . import logs

        rank = self._ask("show the log of these ranks, such as 0,4-7 (Ctrl-C closes the log; empty: back)")
        if not rank:
            return
        options = logs.LogsOptions(run=self._run.run_id, inventory=self._inventory, follow=True, tail=200, rank=rank)
        try:
            logs.logs(options)
        except OrchError as error:
            self._console.error(str(error))
        self._ask("press Enter to return to the board")

    def _diagnose(self) -> None:
        from . import diagnose

        try:
            diagnose.diagnose_run(self._run.run_id, self._inventory, None, as_json=False)
        except OrchError as error:
            self._console.error(str(error))
        self._ask("press Enter to return to the board")

    def _filter(self) -> None:
        self._pattern = self._ask("show only these hosts, such as gpu[01-04] (empty: all)")
        self._look = replace(self._look, host=None, marked=None)
        try:
            self._selected_hosts()
        except OrchError as error:
            self._pattern = ""
            self._console.error(str(error).removeprefix("--hosts "))
            self._ask("press Enter to return to the board")

    def _kill(self) -> None:
        typed = self._ask(f"type the name or the id of the run to kill {self._run.run_id} (empty: back)")
        if typed not in (self._run.run_id, self._run.name):
            if typed:
                self._ask("that is not this run, so nothing was killed. Press Enter to return to the board")
            return
        self._console.note("stopping the run gracefully ...")
        targets = ending.KillTargets(runs=(self._run.run_id,), run_grace=self._run.grace, lease=self._run.lease)
        proof = ending.kill(self._fleet, self._source.hosts, targets, grace=None, by="top")
        kill.print_result(proof, [self._run], self._inventory, self._console)
        if proof.failed or proof.remaining:
            self._ask("press Enter to return to the board")

    @staticmethod
    def _ask(question: str) -> str:
        try:
            return input(f"{question}: ").strip().replace("\x1b", "")  # people press Esc to go back
        except (EOFError, KeyboardInterrupt):
            return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key for some seconds, and returns its name or an empty string."""
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    typed = ""

    def pressed(seconds: float) -> str:
        nonlocal typed
        if not typed:
            if not select.select([stdin], [], [], seconds)[0]:
                return ""
            typed = os.read(stdin, 256).decode("ascii", "replace")
        key, typed = next_key(typed)
        return key

    try:
        tty.setcbreak(stdin)
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def next_key(typed: str) -> tuple[str, str]:
    """The first key of what was typed, and the rest. Terminals send a key such as `up` as several characters."""
    if typed.startswith("\x1b"):
        for sequence, key in _SEQUENCES.items():
            if typed.startswith(sequence, 1):
                return key, typed[1 + len(sequence) :]
    return _CHARACTERS.get(typed[0], typed[0]), typed[1:]
