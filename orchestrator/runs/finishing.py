"""Save a snapshot and stop the run that `up` follows, at a signal of a batch system or when its terminal is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from ..answers.signaled import FINISH
from ..errors import OutputError
from ..hosts.fleet import Fleet, fold_failures
from ..inventory.model import Host
from ..inventory.sources.schedulers import current_scheduler
from ..output.console import Console, hush
from ..output.lines import Line
from ..output.pipeline import Stage

FINISH_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGURG)
"""By which batch systems announce the end of a job. SIGURG is that of LSF's documentation (`bsub -wa URG`)."""
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""By which they end it: SIGHUP is that of `salloc`, and of its terminal."""
RETRY = 5.0  # s


def finish_signals(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """The signals that save a snapshot and stop the run. Why `END_SIGNALS` do it only in a job: docs/adr/0015."""
    return (*FINISH_SIGNALS, *END_SIGNALS) if current_scheduler(environment) else FINISH_SIGNALS


class Finisher:
    """Has the run save a snapshot and stop, once."""

    def __init__(self, run_id: str, hosts: Sequence[Host], fleet: Fleet, console: Console) -> None:
        self._run_id = run_id
        self._hosts = hosts
        self._fleet = fleet
        self._console = console
        self._requested = threading.Event()
        self._over = threading.Event()
        self._terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        self._has_hung_up = False
        self.was_told_to_end = False
        """By one of the `END_SIGNALS`."""

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Do it at the `finish_signals`. A SIGHUP that is ignored, as by nohup, stays so."""
        numbers = [
            number
            for number in finish_signals(os.environ)
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ]
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            self._over.set()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self.was_told_to_end |= number in END_SIGNALS
        if number == signal.SIGHUP:
            self._hang_up()
        self._request(signal.Signals(number).name)

    def notice_hangup(self) -> bool:
        """Whether `up` was told that its terminal is closed, or sees it. Then the run is asked to stop."""
        if (
            not self._has_hung_up
            and current_scheduler(os.environ)
            and not all(stream.isatty() for stream in self._terminals)
        ):
            self.was_told_to_end = True
            self._hang_up()
            self._request(signal.SIGHUP.name)
        return self._has_hung_up

    def _hang_up(self) -> None:
        """From now on, output that nobody can see is discarded. `salloc` sends SIGHUP while its terminal is there."""
        self._has_hung_up = True
        for stream in self._terminals:
            if not stream.isatty():
                hush(stream)

    def _request(self, name: str) -> None:
        if not self._requested.is_set():
            self._requested.set()
            # in a thread, because the view continues to show what the ranks print
            threading.Thread(target=self._finish, args=(name,), daemon=True).start()

    def _finish(self, name: str) -> None:
        self._console.note(f"{name}: saving a snapshot, then stopping the run")
        question = {"run_id": self._run_id, "by": f"{name} to ddp-orch"}
        while True:
            results = self._fleet.each(self._hosts, lambda _, session: session.request(FINISH, question))
            if results.done:
                if not any(answer.can_save for answer in results.done.values()):
                    self._console.warning("no rank handles run.snapshot_signal now: the run stops without a snapshot")
                return
            if self._over.is_set():  # the requests fail because ddp-orch closes its sessions
                return
            for line in fold_failures(results.failed):
                self._console.warning(f"could not stop the run: {line}")
            if not self._has_hung_up:  # the user can send the signal again
                self._requested.clear()
                return
            if self._over.wait(RETRY):
                return


class OutlivingTerminal(Stage):
    """Passes lines to a printer. In a job, a closed terminal does not end `up` before the run has stopped."""

    def __init__(self, printer: Stage, finisher: Finisher) -> None:
        self._printer = printer
        self._finisher = finisher

    @property
    def wake_at(self) -> float:
        return self._printer.wake_at

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        with self._discarding():
            return self._printer.push(lines, now)
        return ()

    def flush(self, now: float) -> Sequence[Line]:
        with self._discarding():
            return self._printer.flush(now)
        return ()

    @contextlib.contextmanager
    def _discarding(self) -> Iterator[None]:
        """The reader of a pipe on that terminal, as in `up | tee`, has ended with it."""
        try:
            yield
        except (BrokenPipeError, OutputError):
            if not self._finisher.notice_hangup():
                raise
            hush(sys.stdout)
