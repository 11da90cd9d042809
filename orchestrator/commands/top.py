"""`top`: show a live board of one run. Its keys start `logs` and `kill`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TextIO

from ..answers.recorded import SAMPLE
from ..errors import OrchError, UnreachableError
from ..hosts.fleet import Fleet, wrap_unexpected
from ..inventory import model
from ..inventory.model import Host
from ..output.console import wants_colour
from ..output.lines import Mask
from ..runs import choice, registry
from ..runs.revive import Reviver
from . import same_name
from .board import Screen, render
from .board_rows import BoardRow, without_harmless, without_old_places, without_old_steps
from .context import load_inventory_of_run, make_mask, open_fleet, stderr_console, warn_of_doubts, warn_of_failures

SAMPLE_INTERVAL = 2.0  # s between samples of a host
MOST_SAMPLES = 16.0  # per second, of all hosts together: a sample takes about 1 ms of processor time here
FIRST_SAMPLE_TIMEOUT = 5.0  # s, if only one table is printed


def pause(hosts: int) -> float:
    """Seconds between the samples of one of so many hosts."""
    return max(SAMPLE_INTERVAL, hosts / MOST_SAMPLES)


class Watcher:
    """Samples every host repeatedly. Each host has a thread, so that a hanging host does not delay the others."""

    def __init__(
        self,
        fleet: Fleet,
        hosts: Sequence[Host],
        run_id: str,
        nodes: Mapping[str, int],
        find_host: Callable[[str], Host | None],
    ) -> None:
        """`find_host`: finds a host that is added to the run later."""
        self.hosts: list[Host] = []
        self.news = ""
        """What became of a host that has come back without a guard."""
        self._fleet = fleet
        self._run_id = run_id
        self._find_host = find_host
        self._nodes = dict(nodes)
        self._rows: dict[str, BoardRow] = {}
        self._reviver = Reviver(run_id, self._nodes, self.hosts, fleet, self._tell, self._tell)
        self._stopped = threading.Event()
        for host in hosts:
            self._begin(host)

    def _begin(self, host: Host) -> None:
        self.hosts.append(host)
        self._rows[host.name] = BoardRow(host.name, node=self._nodes.get(host.name))
        threading.Thread(target=self._watch, args=(host,), name="top", daemon=True).start()

    def rows(self) -> list[BoardRow]:
        """The newest state of all hosts, in their order."""
        return without_old_steps(without_old_places(list(self._rows.values())))

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self, host: Host) -> None:
        self._look(host)
        self._stopped.wait(SAMPLE_INTERVAL)  # rates need a second sample
        while not self._stopped.is_set():
            self._look(host)
            self._stopped.wait(pause(len(self.hosts)))

    def _look(self, host: Host) -> None:
        row = self._rows[host.name]
        try:
            now = self._fleet.session(host).request(SAMPLE, {"run_id": self._run_id})
        except Exception as error:  # noqa: BLE001  a host may answer anything
            failure = error if isinstance(error, OrchError) else wrap_unexpected(host.name, error)
            self._rows[host.name] = replace(row, trouble=str(failure).removeprefix(f"{host.name}: "))
        else:
            self._rows[host.name] = BoardRow(host.name, without_harmless(now), previous=row.now, node=row.node)
            if now.run is not None and now.run.node == now.run.head == row.node:
                self._add_new(now.run.hosts)
            if self._misses_guard(row) and self._misses_guard(self._rows[host.name]):
                self._reviver.revive(host)  # not at the first look: the recorder may start a guard by itself

    def _add_new(self, names: Sequence[str]) -> None:
        """Show hosts that were added to the run. `names`: all its hosts, by node number, as its head tells."""
        for node, name in enumerate(names):
            if node in self._nodes.values() or name in self._nodes:
                continue
            self._nodes[name] = node
            if (host := self._find_host(name)) is not None:
                self._begin(host)

    def _misses_guard(self, row: BoardRow) -> bool:
        goes_on = any(other.part is not None and other.part.unfinished for other in list(self._rows.values()))
        return goes_on and row.part is not None and row.part.lacks_guard

    def _tell(self, news: str) -> None:
        self.news = news


def top(run_name: str | None, inventory_path: str | None, hosts: str | None) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        # do not wait for late hosts: the board shows them
        enough = partial(choice.is_known, run_name, inventory.path)
        listing = registry.find(fleet, inventory.machines, enough, run_name=run_name)
        warn_of_failures(listing.failed, console)
        warn_of_doubts(listing, console)
        if run_name is None:
            run_name = next((run.run_id for run in reversed(listing.runs) if run.unfinished), None)
        run = choice.choose(listing, run_name, inventory.path)
        same_name.note_choice(run, listing, run_name, inventory, console)
        mask = make_mask(inventory, run, console)
        of_run = [host for host in inventory.machines if host.name in run.parts or host.name in run.missing_hosts]
        find_host = partial(model.find_new_host, inventory, variables=os.environ)
        watcher = Watcher(fleet, of_run, run.run_id, run.all_nodes, find_host)
        try:
            # rich draws no board on a dumb terminal
            if sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb":
                from .top_live import LiveBoard

                LiveBoard(watcher, run, fleet, inventory.path, mask, console).show()
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
    rich.print(render(run_id, watcher.rows(), Screen(width, 10_000, "", mask)))


def _columns_of(stream: TextIO) -> int:
    """The width of the terminal of `stream`; 0 if it is not a terminal. With `| cat`, stderr still is one."""
    return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
