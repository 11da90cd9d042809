from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from orchestrator.inventory.hostnames import pick
from orchestrator.output.console import Console, all_but, fold, fold_messages, size, wants_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_messages_are_plain_lines_in_a_pipe() -> None:
    stream = io.StringIO()
    console = Console(stream, colour=False)
    console.error("gpu-02: refused")
    console.warning("3 s ahead")
    console.note("2 hosts")
    console.step("prepared")
    assert stream.getvalue().splitlines() == ["error: gpu-02: refused", "warning: 3 s ahead", "2 hosts", "- prepared"]


def test_a_status_is_for_terminals_and_makes_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        console = Console(stream, colour=False)
        console.status("3 s\nstep 1 \x1b[2J")
        console.note("done")
    assert pipe.getvalue() == "done\n"
    assert terminal.getvalue() == "\r\x1b[K3 s step 1 \r\r\x1b[Kdone\n"


def test_a_status_fits_the_terminal_that_it_is_shown_on() -> None:
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with open(writing, "w") as terminal:
        Console(terminal, colour=False).status("connecting to a host of a long name")
        assert len(os.read(reading, 100).decode().replace("\x1b[K", "").strip()) == 19
    os.close(reading)


def test_only_the_label_is_coloured() -> None:
    stream = io.StringIO()
    Console(stream, colour=True).error("no")
    assert stream.getvalue() == "\x1b[1;31merror: \x1b[0mno\n"


def test_success_is_green_on_a_terminal() -> None:
    stream, plain = io.StringIO(), io.StringIO()
    Console(stream, colour=True).success("run R succeeded")
    Console(plain, colour=False).success("run R succeeded \x1b[31m")
    assert stream.getvalue() == "\x1b[32mrun R succeeded\x1b[0m\n" and plain.getvalue() == "run R succeeded \n"


def test_what_a_host_said_cannot_command_the_terminal() -> None:
    stream = io.StringIO()
    Console(stream, colour=True).note("sshd says \x1b]52;c;Zm9v\x07\x1b[2J[/bold]\nagain")
    assert stream.getvalue() == "sshd says [/bold]\nagain\n"


@pytest.mark.parametrize(
    ("terminal", "environ", "wanted"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm-256color"}, True),
        (False, {"TERM": "xterm-256color"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (False, {"FORCE_COLOR": ""}, False),
        (True, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_unless_the_environment_says_otherwise(
    terminal: bool, environ: dict[str, str], wanted: bool
) -> None:
    assert wants_colour(Terminal() if terminal else io.StringIO(), environ) is wanted


def test_a_reader_that_has_gone_away_is_no_error() -> None:
    program = """
import sys
from orchestrator.output.console import Console
sys.stdin.read()  # until the reader of stderr has gone
console = Console(sys.stderr, colour=False)
for _ in range(3):
    console.note("x" * 100_000)
"""
    process = subprocess.Popen((sys.executable, "-c", program), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    process.stderr.close()
    process.stdin.close()
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        ((), ""),
        (("lovelace",), "lovelace"),
        (("gpu-03", "gpu-01", "gpu-02"), "gpu-[01-03]"),
        (("gpu-01", "gpu-01"), "gpu-01"),
        (("hopper", "gpu-2", "gpu-3"), "gpu-[2-3],hopper"),
        (("10.0.0.1", "10.0.0.2"), "10.0.0.[1-2]"),
        (("n1", "fe80::1%eth0", "n2"), "n[1-2],fe80::1%eth0"),
        (("@all", "a,b", "n[1-9]", "x!y"), "@all,a,b,n[1-9],x!y"),  # no group is looked up, nothing is expanded
        (("a\x1b[2J", "b"), "b,a"),
    ],
)
def test_names_are_folded(hosts: tuple[str, ...], folded: str) -> None:
    assert fold(hosts) == folded


def test_equal_messages_are_said_once_with_all_their_hosts() -> None:
    messages = {
        "gpu-05": "connection refused",
        "gpu-03": "connection refused",
        "gpu-01": "no python3",
        "gpu-04": "connection refused",
    }
    assert fold_messages(messages) == ["gpu-01: no python3", "gpu-[03-05]: connection refused (3 hosts)"]
    assert fold_messages({}) == []


def test_showing_text_imports_neither_rich_nor_clustershell() -> None:
    program = (
        "import sys, orchestrator.output.console, orchestrator.output.lines; "
        "print({'rich', 'ClusterShell'} & set(sys.modules))"
    )
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=30)
    assert done.stdout == "set()\n"


def test_bytes_are_told_in_the_unit_that_says_something() -> None:
    assert [size(count) for count in (9, 999, 4100, 99_949, 100_000, 12_300_000)] == [
        "9 bytes", "999 bytes", "4.1 kB", "99.9 kB", "0.1 MB", "12.3 MB",
    ]  # fmt: skip


def test_the_pattern_for_all_but_some_hosts_means_just_that() -> None:
    names = ["gpu01", "gpu02", "gpu03", "gpu05", "lovelace"]
    for out in (["gpu02"], ["gpu01", "gpu03"], ["gpu01", "gpu02", "lovelace"], ["gpu01", "gpu03", "gpu05"]):
        assert list(pick(names, all_but(out))) == [name for name in names if name not in out]
