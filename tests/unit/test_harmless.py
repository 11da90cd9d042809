"""Harmless warnings are hidden while a run works, and shown as soon as it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.output.harmless import HEADING, HOLD, HarmlessFilter
from orchestrator.output.lines import Line

EXIT_BARRIER = Path(__file__).parents[1] / "golden" / "logs" / "quiet" / "torchrun-exit-barrier.raw"
HOSTNAME = (
    "[W1123 15:08:40.595052822 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
)
ALWAYS = [
    HOSTNAME,
    "[rank3]:[W730 15:32:17.841273251 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to "
    "[localhost]:29500 (errno: 97 - Address family not supported by protocol).",
    "[W1004 15:16:15.503072590 socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 "
    "(errno: 97 - Address family not supported by protocol).",
    "W1123 15:08:38.120000 1234 site-packages/torch/distributed/run.py:877] Setting OMP_NUM_THREADS environment "
    "variable for each process to be 1 in default, to avoid your system being overloaded, please further tune the "
    "variable for optimal performance in your application as needed. ",
    "node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend=c10d.",
]
AT_THE_END = [
    "[rank0]:[W730 15:32:17.841273251 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not "
    "called before program exit, which can leak resources. For more info, please see "
    "https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
    "[rank0]:[W227 10:54:51.986111855 ProcessGroupNCCL.cpp:1374] Warning: WARNING: process group has NOT been "
    "destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call "
    "destroy_process_group",
    "[W506 00:43:56.240378877 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr=[gpu-1]:47466, "
    "remote=[gpu-0]:29500): Connection reset by peer",
    "W1123 15:09:40.120000 1234 site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1341] The "
    "node 'gpu-1_99_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of type "
    "RendezvousConnectionError.",
]
STACK = [
    "Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):",
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x1468a2869c10 in /lib/libc10.so)",
    "frame #1: <unknown function> + 0x5ced701 (0x1468ae81e701 in /lib/libtorch_cpu.so)",
    "",
]
HARMFUL = [
    "[rank0]:[E730 15:32:17.841273251 ProcessGroupNCCL.cpp:1479] [PG 0 Rank 0] Watchdog caught collective operation "
    "timeout",
    "[W1123 15:08:40.595052822 socket.cpp:752] [c10d] The client socket has failed to connect to [gpu-0]:29500 "
    "(errno: 111 - Connection refused).",
    "[W1123 15:08:40.595052822 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to "
    "[gpu-0]:29500 (errno: 24 - Too many open files).",
    f"print({HOSTNAME})",
    "WARNING: my own",
    "",
]
FAILS = "ddp-orch: first failure: gpu-1: rank 3: exit code 1; stopping all nodes"
FAILED = "ddp-orch: the run failed; not restarted: run.max_restarts (1) is used up"
SUCCEEDS = "ddp-orch: the run has succeeded"


def line(text: str, rank: int | None = 3, attempt: int = 1, at: float = 0.0) -> Line:
    return Line(at, "gpu-1", rank, "agent" if rank is None else "stderr", attempt, text)


class Screen:
    """What a person sees of lines that come at some seconds."""

    def __init__(self) -> None:
        self.hidden = 0
        self.lines: list[Line] = []
        self._filter = HarmlessFilter(self._count)

    def _count(self, count: int) -> None:
        self.hidden = count

    def push(self, *lines: Line, now: float = 0.0) -> None:
        self.lines += self._filter.push(lines, now)

    def end(self) -> list[Line]:
        self.lines += self._filter.flush(0.0)
        return self.lines


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.mark.parametrize("text", ALWAYS)
def test_a_harmless_warning_is_hidden_and_counted(screen: Screen, text: str) -> None:
    screen.push(line(text), line("step 1"), line(text, rank=None))
    assert screen.end() == [line("step 1")]
    assert screen.hidden == 2


@pytest.mark.parametrize("text", HARMFUL)
def test_any_other_line_is_shown(screen: Screen, text: str) -> None:
    screen.push(line(text), line(SUCCEEDS, rank=None))
    assert screen.end() == [line(text), line(SUCCEEDS, rank=None)]
    assert screen.hidden == 0


@pytest.mark.parametrize("text", AT_THE_END)
def test_a_warning_of_the_end_is_hidden_if_the_run_succeeds_then(screen: Screen, text: str) -> None:
    screen.push(line(text), *map(line, STACK), line("bye"))
    screen.push(line(SUCCEEDS, rank=None), now=HOLD / 2)
    assert screen.end() == [line("bye"), line(SUCCEEDS, rank=None)]
    assert screen.hidden == 1


@pytest.mark.parametrize("text", AT_THE_END)
def test_a_warning_of_the_end_is_shown_if_the_run_goes_on(screen: Screen, text: str) -> None:
    screen.push(line(text), *map(line, STACK), line("step 2"))
    screen.push(line("step 3"), now=HOLD + 1)
    assert screen.end() == [line("step 2"), line(text), *map(line, STACK), line("step 3")]
    assert screen.hidden == 0


def test_of_each_try_to_connect_the_line_is_shown_without_its_stack(screen: Screen) -> None:
    tries = [
        line(
            f"[W1129 00:23:5{number}.7 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host a:29500 -"
        )
        for number in range(2)
    ]
    for one in tries:
        screen.push(one, *map(line, STACK))
    assert screen.lines == tries
    screen.push(line(FAILED, rank=None))
    assert screen.lines[-len(STACK) - 1 : -1] == [*map(line, STACK)]


def test_everything_hidden_is_shown_when_the_run_fails(screen: Screen) -> None:
    early, step, late = line(ALWAYS[0], at=1.0), line("step 1", at=2.0), line(AT_THE_END[0], at=3.0)
    failure, after, end = line(FAILS, rank=None, at=4.0), line(ALWAYS[1], at=5.0), line(FAILED, rank=None, at=6.0)
    screen.push(early, step, late)
    screen.push(failure, after)
    screen.push(end)
    *shown, heading, hidden, last = screen.end()
    assert shown == [step, late, failure, after] and heading.text.startswith(f"{HEADING}1 ") and heading.rank is None
    assert [hidden, last] == [early, end]
    assert screen.hidden == 0


def test_of_warnings_that_differ_only_in_rank_and_time_the_first_is_shown(screen: Screen) -> None:
    text = HOSTNAME.replace(":40.", ":4{}.")
    hidden = [line(text.format(rank), rank) for rank in (0, 1, 2)]
    own = [line(text.format(7), 0), line(ALWAYS[1], 2)]
    failure, end = line(FAILS, rank=None), line(FAILED, rank=None)
    screen.push(*hidden, *own, failure, end)
    _, heading, *shown, _ = screen.end()
    assert heading.text.startswith(f"{HEADING}5 ") and shown == [hidden[0], *own]


def test_only_the_lines_of_the_last_attempt_are_shown(screen: Screen) -> None:
    first, second = (line(HOSTNAME, attempt=attempt) for attempt in (1, 2))
    failures = [line(FAILS, rank=None, attempt=attempt) for attempt in (1, 2)]
    end = line(FAILED, rank=None, attempt=2)
    screen.push(first, failures[0], second)
    screen.push(failures[1], end)
    shown = [one for one in screen.end() if not one.text.startswith(HEADING)]
    assert shown == [*failures, second, end]
    assert screen.hidden == 1


def test_a_rank_cannot_pretend_that_the_run_has_ended(screen: Screen) -> None:
    warning, claim = line(AT_THE_END[0]), line(SUCCEEDS, rank=3)
    screen.push(warning, claim)
    assert screen.end() == [claim, warning]


def test_the_box_around_a_warning_is_hidden_with_it_and_not_counted(screen: Screen) -> None:
    start = "W1123 15:08:38.120000 1234 site-packages/torch/distributed/run.py:877] "
    screen.push(*(line(text, rank=None) for text in (start, start + "*" * 41, ALWAYS[3], start + "*" * 41)))
    assert screen.end() == []
    assert screen.hidden == 1


@pytest.mark.parametrize("succeeds", [True, False])
def test_the_errors_of_torchruns_exit_barrier_are_hidden_only_if_the_run_succeeds(
    screen: Screen, succeeds: bool
) -> None:
    block = [line(text.partition(" ")[2], rank=None) for text in EXIT_BARRIER.read_text().splitlines()]
    end = line(SUCCEEDS if succeeds else FAILS, rank=None, at=1.0)
    for each in block:
        screen.push(each)
    assert screen.lines == []
    screen.push(end, now=1.0)
    assert screen.end() == ([end] if succeeds else [*block, end])
    assert screen.hidden == (2 if succeeds else 0)


def test_another_error_of_the_agent_is_shown_at_once(screen: Screen) -> None:
    prefix = "E1122 00:22:08.033000 22975 site-packages/torch/distributed/elastic/agent/server/api.py:1008] "
    others = [line(prefix + text, rank=None) for text in ("Traceback (most recent call last):", "local_rank 0 failed")]
    screen.push(*others)
    assert screen.lines == others
