"""Hide warnings of torch that mean nothing in a run that works. Pure.

Only lines whose whole text is in the table are hidden, and those of the last attempt are shown when the run has failed:
then nobody knows what they mean. `logs --all`, `--stream`, `--grep`, `--json` and `--output` show every line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from .lines import Line
from .pipeline import Stage

HOLD = 5.0  # s to wait for the end of the run: some warnings are harmless only there
MAX_HIDDEN = 10_000  # lines kept for the case that the run fails

_C10D = r"(?:\[rank\d+\]:)?\[W\d{3,4} [\d:.]+ \w+\.cpp:\d+\] "  # torch's C++
_PYTHON = r"W\d{3,4} [\d:.]+ \d+ \S+\.py:\d+\] "  # torch's Python
_AGENT = r"E\d{3,4} [\d:.]+ \d+ \S*torch/distributed/elastic/agent/server/api\.py:\d+\] "  # torchrun's own errors
ALWAYS = (
    # a reverse look-up of a peer's address failed; only the text of later messages would have used the name
    _C10D + r"\[c10d\] The hostname of the client socket cannot be retrieved\. err=-?\d+",
    # the host has no IPv6, so torch tries IPv4 next
    _C10D + r"\[c10d\] The (?:client|server) socket cannot be initialized (?:to connect to|on) \S+"
    r" \(errno: 97 - Address family not supported by protocol\)\.",
    # the user has given --rdzv-backend to torchrun, and so has ddp-orch --node-rank
    r"node_rank is only used for static rdzv_backend\. It will be ignored for rdzv_backend=\w+\.",
    # torchrun's default for OMP_NUM_THREADS, in a box of stars
    _PYTHON + r"(?:\*+|Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, .*)?",
)
AT_THE_END = (
    # the script ends without destroy_process_group()
    _C10D + r"Warning: WARNING: (?:destroy_process_group\(\) was not called before program exit"
    r"|process group has NOT been destroyed before we destruct ProcessGroupNCCL)\b.*",
    # a rank has ended before another, and with it a connection
    _C10D + r"\[c10d\] (?:recvValue|recvVector|recvValueWithTimeout|sendBytes) failed on SocketImpl\(.*",
    _C10D + r"\[PG ID .*\] Failed to check the \"should dump\" flag on TCPStore, .*",
    _PYTHON + r"The node '.*' has failed to (?:send a keep-alive heartbeat|shutdown the rendezvous) .*",
    # the agent of the head has ended before the others: their ranks have all finished
    _AGENT + r"Error waiting on exit barrier\. Elapsed: .*",
)
# after a warning of AT_THE_END
_STACK = rf"Exception raised from .*|frame #\d+: .*|<omitting python frames>|{_AGENT}(?:Traceback \(| |\S+Error: ).*|"
# shown, because it names the address, at each try
_RETRY = re.compile(_C10D + r"\[c10d\] TCP client failed to connect/validate to host .*").fullmatch
_ALWAYS, _AT_THE_END, _IN_STACK = (re.compile("|".join(table)).fullmatch for table in (ALWAYS, AT_THE_END, [_STACK]))
_BOX = re.compile(_PYTHON + r"\**").fullmatch
_STAMP = re.compile(r"(?:\[rank\d+\]:)?\[?[WE]\d{3,4} [\d:.]+ (?:\d+ )?")
HEADING = "ddp-orch: shown because the run failed: "
_FAILS = "ddp-orch: first failure: "
_HAS_FAILED = "ddp-orch: the run failed"
_SUCCEEDS = "ddp-orch: the run has succeeded"

Source = tuple[str, int | None, str]  # host, rank and stream


def is_harmless(text: str) -> bool:
    """Whether a line means nothing, however the run ends."""
    return _may_matter(text) and _ALWAYS(text) is not None


class HarmlessFilter(Stage):
    """Takes lines in order, and gives those that are not harmless."""

    def __init__(self, describe: Callable[[int], object]) -> None:
        """`describe`: called at the end with the number of hidden warnings, if there are any."""
        self._describe = describe
        self._counts: Counter[int] = Counter()  # attempt -> hidden warnings
        self._hidden: list[Line] = []  # of the newest attempt
        self._held: list[Line] = []  # harmless if the run succeeds now
        self._held_at = 0.0
        self._stacks: set[Source] = set()  # sources whose last line was held: their stack may follow
        self._retries: set[Source] = set()  # sources whose last line was one of _RETRY: its stack says nothing more
        self._failed = 0  # the newest attempt that has failed

    @property
    def wake_at(self) -> float:
        return self._held_at + HOLD if self._held else math.inf

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if now >= self.wake_at:
            return [*self._release_held(), *self.push(lines, now)]
        if not (self._stacks or self._retries) and not any(_may_matter(line.text) for line in lines):
            return lines
        return [shown for line in lines for shown in self._sort(line, now)]

    def flush(self, now: float) -> Sequence[Line]:
        held = self._release_held()
        if count := self._counts.total():
            self._describe(count)
        return held

    def _sort(self, line: Line, now: float) -> Sequence[Line]:
        source = line.host, line.rank, line.stream
        if source in self._retries and _IN_STACK(line.text):
            self._hide([line])
            self._counts[line.attempt] += line.text.startswith("Exception raised from ")
            return ()
        self._retries -= {source}
        if _RETRY(line.text):
            self._retries.add(source)
        in_stack = source in self._stacks and _IN_STACK(line.text)
        if not in_stack:
            self._stacks.discard(source)
        if line.rank is None and line.text.startswith(_FAILS):
            self._failed = line.attempt
            return [*self._release_held(), line]
        if line.rank is None and line.text.startswith(_HAS_FAILED):
            return [*self._release_held(), *self._uncover(line.attempt), line]
        if line.rank is None and line.text.startswith(_SUCCEEDS):
            self._hide(self._held)
            self._held = []
        elif line.attempt <= self._failed:
            pass
        elif in_stack or _AT_THE_END(line.text):
            self._held_at = self._held_at if self._held else now
            self._held.append(line)
            self._stacks.add(source)
            return ()
        elif _ALWAYS(line.text):
            self._hide([line])
            return ()
        return (line,)

    def _hide(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if self._hidden and line.attempt > self._hidden[-1].attempt:
                self._hidden = []
            if len(self._hidden) < MAX_HIDDEN:
                self._hidden.append(line)
            if not _IN_STACK(line.text) and not _BOX(line.text):
                self._counts[line.attempt] += 1

    def _uncover(self, attempt: int) -> Sequence[Line]:
        """The hidden lines of an attempt, after a line that says what they are."""
        hidden = [line for line in self._hidden if line.attempt == attempt]
        self._hidden = []
        count = self._counts.pop(attempt, 0)
        if not hidden:
            return ()
        shown = _fold(hidden)
        what = "warning of before, harmless as a rule" if count == 1 else "warnings of before, harmless as a rule"
        what += "; of those that several ranks printed, the first" if len(shown) < len(hidden) else ""
        return [hidden[0]._replace(rank=None, stream="agent", text=f"{HEADING}{count} {what}:"), *shown]

    def _release_held(self) -> Sequence[Line]:
        held, self._held = self._held, []
        self._stacks.clear()
        return held


def _fold(lines: Sequence[Line]) -> list[Line]:
    """Without lines that another source has printed before, but for their times. Of one source, all lines stay."""
    printed: Counter[tuple[Source, str]] = Counter()
    most: Counter[str] = Counter()
    shown = []
    for line in lines:
        text = _STAMP.sub("", line.text)
        printed[(line.host, line.rank, line.stream), text] += 1
        if (count := printed[(line.host, line.rank, line.stream), text]) > most[text]:
            most[text] = count
            shown.append(line)
    return shown


def _may_matter(text: str) -> bool:
    """Whether a line may be in a table, or tell how the run ends."""
    return text[:1] in "[WEdn" and (
        text.startswith(("[W", "[rank", "ddp-orch: ", "node_rank is ")) or text[1:4].isdigit()
    )
