"""`top`: show a live board of one run. Its keys start `logs` and `kill`."""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from ..answers.recorded import SAMPLE
from ..errors import OrchError, UnreachableError
from ..hosts.fleet import Fleet, wrap_unexpected
from ..inventory.hostnames import pick
from ..inventory.model import Host
from ..output.console import Console, wants_colour
from ..output.lines import Mask
from ..runs import ending, registry
from ..runs.revive import Reviver
from .board import render, render_ranks
from .board_rows import BoardRow
from .context import load_inventory_of_run, make_mask, open_fleet, stderr_console, warn_of_doubts, warn_of_failures
from .curves import History

if TYPE_CHECKING:
    from rich.console import Console as Rich
    from rich.live import Live

SAMPLE_INTERVAL = 2.0  # s between samples of a host
RESIZE_INTERVAL = 0.25  # s between looks at the size of the terminal
FIRST_SAMPLE_TIMEOUT = 5.0  # s, if only one table is printed
KEYS = "q quit   v hosts or ranks   l log of a rank   f filter hosts   k kill"


class Watcher:
    """Samples every host repeatedly. Each host has a thread, so that a hanging host does not delay the others."""

    def __init__(self, fleet: Fleet, hosts: Sequence[Host], run_id: str, nodes: Mapping[str, int]) -> None:
        self.news = ""
        """What became of a host that has come back without a guard."""
        self._fleet = fleet
        self._run_id = run_id
        self._rows = {host.name: BoardRow(host.name, node=nodes.get(host.name)) for host in hosts}
        self._reviver = Reviver(run_id, nodes, hosts, fleet, self._tell, self._tell)
        self._stopped = threading.Event()
        for host in hosts:
            threading.Thread(target=self._watch, args=(host,), name="top", daemon=True).start()

    def rows(self) -> list[BoardRow]:
        """The newest state of all hosts, in their order."""
        return list(self._rows.values())

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self, host: Host) -> None:
        while not self._stopped.is_set():
            self._look(host)
            self._stopped.wait(SAMPLE_INTERVAL)

    def _look(self, host: Host) -> None:
        row = self._rows[host.name]
        try:
            now = self._fleet.session(host).request(SAMPLE, {"run_id": self._run_id})
        except Exception as error:  # noqa: BLE001  a host may answer anything
            failure = error if isinstance(error, OrchError) else wrap_unexpected(host.name, error)
            self._rows[host.name] = replace(row, trouble=str(failure).removeprefix(f"{host.name}: "))
        else:
            self._rows[host.name] = BoardRow(host.name, now, previous=row.now, node=row.node)
            if self._misses_guard(row) and self._misses_guard(self._rows[host.name]):
                self._reviver.revive(host)  # not at the first look: the recorder may start a guard by itself

    def _misses_guard(self, row: BoardRow) -> bool:
        goes_on = any(other.part is not None and other.part.unfinished for other in self.rows())
        return goes_on and row.part is not None and row.part.lacks_guard

    def _tell(self, news: str) -> None:
        self.news = news


def top(run_name: str | None, inventory_path: str | None, hosts: str | None) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        # do not wait for late hosts: the board shows them
        listing = registry.find(fleet, inventory.machines, partial(registry.is_known, run_name, inventory.path))
        warn_of_failures(listing.failed, console)
        warn_of_doubts(listing, console)
        if run_name is None:
            run_name = next((run.run_id for run in reversed(listing.runs) if run.unfinished), None)
        run = registry.choose(listing, run_name, inventory.path)
        mask = make_mask(inventory, run, console)
        of_run = [host for host in inventory.machines if host.name in run.parts or host.name in run.missing_hosts]
        watcher = Watcher(fleet, of_run, run.run_id, run.all_nodes)
        try:
            # rich draws no board on a dumb terminal
            if sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb":
                _Live(watcher, run, fleet, of_run, inventory.path, mask, console).show()
            else:
                _print_once(watcher, run.run_id, mask)
        except KeyboardInterrupt:
            pass  # the run continues
        finally:
            watcher.stop()
        return UnreachableError.exit_code if any(row.trouble for row in watcher.rows()) else 0


def _print_once(watcher: Watcher, run_id: str, mask: Mask) -> None:
    """Without a terminal, print one table. It has rates, so it needs two samples."""
    from rich.console import Console as Rich

    deadline = time.monotonic() + SAMPLE_INTERVAL + FIRST_SAMPLE_TIMEOUT
    while time.monotonic() < deadline and not all(row.previous or row.trouble for row in watcher.rows()):
        time.sleep(0.1)
    width = int(os.environ.get("COLUMNS") or _columns_of(sys.stderr) or 160)
    rich = Rich(file=sys.stdout, width=width, force_terminal=wants_colour(sys.stdout, os.environ), highlight=False)
    rich.print(render(run_id, watcher.rows(), width, 10_000, mask, ""))


def _columns_of(stream: TextIO) -> int:
    """The width of the terminal of `stream`; 0 if it is not a terminal. With `| cat`, stderr still is one."""
    return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0


class _Live:
    """The board on a terminal, and its keys."""

    def __init__(
        self,
        watcher: Watcher,
        run: registry.Run,
        fleet: Fleet,
        hosts: Sequence[Host],
        inventory: str,
        mask: Mask,
        console: Console,
    ) -> None:
        self._watcher = watcher
        self._run = run
        self._fleet = fleet
        self._hosts = hosts
        self._inventory = inventory
        self._mask = mask
        self._console = console
        self._pattern = ""
        self._history = History()
        self._shows_ranks = False
        # asked now, because rich replaces stdout by an object without an encoding while it draws
        self._shows_blocks = (sys.stdout.encoding or "").lower().startswith("utf")

    def show(self) -> None:
        key = ""
        while key != "q":
            key = self._board()
            action = {"l": self._log, "f": self._filter, "k": self._kill}.get(key)
            if action is not None:
                with self._rich().screen(hide_cursor=False):  # the dialog disappears afterwards
                    action()

    def _rich(self) -> Rich:
        from rich.console import Console as Rich

        return Rich(file=sys.stdout, no_color=not wants_colour(sys.stdout, os.environ), highlight=False)

    def _board(self) -> str:
        """Draw until one of KEYS is pressed."""
        from rich.live import Live

        with _keys() as pressed, Live(console=self._rich(), screen=True, auto_refresh=False) as live:
            sampled_at = -SAMPLE_INTERVAL
            while True:
                if time.monotonic() >= sampled_at + SAMPLE_INTERVAL:
                    sampled_at = time.monotonic()
                    self._history.add([row for row in self._watcher.rows() if not row.trouble])
                self._draw(live, size := shutil.get_terminal_size())
                key = ""
                while not key and size == shutil.get_terminal_size():
                    if time.monotonic() >= sampled_at + SAMPLE_INTERVAL:
                        break
                    key = pressed(RESIZE_INTERVAL)
                if key == "v":
                    self._shows_ranks = not self._shows_ranks
                elif key and key in "qlfk":
                    return key

    def _draw(self, live: Live, size: os.terminal_size) -> None:
        width, height = size
        rows = [row for row in self._watcher.rows() if row.host in self._selected_hosts()]
        curves = self._history.curves(width) if self._shows_blocks else ""
        board = (render_ranks if self._shows_ranks else render)(
            self._run.run_id, rows, width, height, self._mask, self._footer(), curves
        )
        live.update(board, refresh=True)

    def _footer(self) -> str:
        keys = f"{self._watcher.news}   {KEYS}" if self._watcher.news else KEYS
        if not self._pattern:
            return keys
        return f"only {self._pattern}: {len(self._selected_hosts())} of {len(self._hosts)} hosts   {keys}"

    def _selected_hosts(self) -> set[str]:
        names = [host.name for host in self._hosts]
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

    def _filter(self) -> None:
        self._pattern = self._ask("show only these hosts, such as gpu[01-04] (empty: all)")
        try:
            self._selected_hosts()
        except OrchError as error:
            self._pattern = ""
            self._console.error(str(error).removeprefix("--hosts "))
            self._ask("press Enter to return to the board")

    def _kill(self) -> None:
        typed = self._ask(f"type the run's id to kill {self._run.run_id} (empty: back)")
        if typed != self._run.run_id:
            if typed:
                self._ask("the id does not match, so nothing was killed. Press Enter to return to the board")
            return
        self._console.note("stopping the run gracefully ...")
        targets = ending.KillTargets(runs=(self._run.run_id,), run_grace=self._run.grace, lease=self._run.lease)
        ending.kill(self._fleet, self._hosts, targets, grace=None, by="top")

    @staticmethod
    def _ask(question: str) -> str:
        try:
            return input(f"{question}: ").strip().replace("\x1b", "")  # people press Esc to go back
        except (EOFError, KeyboardInterrupt):
            return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key for some seconds, and returns it or an empty string."""
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def pressed(seconds: float) -> str:
        if not select.select([stdin], [], [], seconds)[0]:
            return ""
        return os.read(stdin, 1).decode("ascii", "replace")

    try:
        tty.setcbreak(stdin)
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
