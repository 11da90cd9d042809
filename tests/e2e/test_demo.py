"""`ddp-orch demo` as a newcomer runs it: it trains, says what it reached, and leaves nothing, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.demo import demo as demo_module
from orchestrator.demo import with_torch
from orchestrator.errors import FindingsError

MAX_LINES = 25  # besides the output of the training
CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the demo's hosts are this machine, and hosts run Linux"
)


class Demo:
    """A demo that runs in a home and with a TMPDIR of its own, by which all that it starts is known."""

    def __init__(self, folder: Path) -> None:
        self.home, self.tmp, self._output = folder / "home", folder / "tmp", folder / "output"
        self.home.mkdir()
        self.tmp.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.cli", "demo"],
                cwd=CHECKOUT,
                env={**kept, "HOME": str(self.home), "TMPDIR": str(self.tmp)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output() or self.process.poll() is not None, 120, f"the demo says {text!r}")
        assert text in self.output(), self.output()

    def left(self) -> list[str]:
        """Processes of this demo, and its files."""
        processes = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"TMPDIR={self.tmp}".encode() in entry.read_bytes():
                    processes.append((entry.parent / "cmdline").read_text().replace("\0", " "))
        return processes + os.listdir(self.home) + os.listdir(self.tmp)

    def assert_nothing_left(self) -> None:
        try:
            wait_until(lambda: not self.left(), 20, "nothing is left")
        except AssertionError as error:
            raise AssertionError(f"{self.left()} is left\n{self.output()}") from error


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    demo.process.kill()
    demo.process.wait()


@pytest.mark.slow
def test_demo_trains_on_two_hosts_to_95_percent_and_leaves_nothing(demo: Demo) -> None:
    assert demo.process.wait(240) == 0, demo.output()
    demo.assert_nothing_left()
    output = demo.output()
    reached = re.search(r"^test accuracy (0\.\d+) .* 2 hosts, 2 ranks", output, re.MULTILINE)
    assert reached and float(reached[1]) >= 0.95, output
    for line in ("demo-a:0     | start rank:0 world_size:2", "demo-b:1     | start rank:1 world_size:2"):
        assert line in output
    assert "ddp-orch init " in output
    # a rank was killed, and the run continued
    assert "killed by SIGKILL" in output and re.search(r"^demo-a:0 .* resumed .*step:[1-9]", output, re.MULTILINE)
    other = [line for line in output.splitlines() if not re.match(r"demo-[ab]:\d", line)]
    assert len(other) <= MAX_LINES, "\n".join(other)


# the moments: the hosts are there; the launch has begun; the ranks train
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(signal.SIGINT, "- ddp-orch up", marks=pytest.mark.full),
        pytest.param(signal.SIGINT, "hosts ready", marks=pytest.mark.full),
        (signal.SIGINT, "epoch:1 step:10 "),
        (signal.SIGTERM, "hosts ready"),
        pytest.param(signal.SIGTERM, "epoch:1 step:10 ", marks=pytest.mark.full),
    ],
)
def test_demo_that_is_stopped_leaves_nothing(demo: Demo, number: signal.Signals, moment: str) -> None:
    demo.wait_for(moment)
    demo.process.send_signal(number)
    assert demo.process.wait(60) == 130, demo.output()
    assert not demo.left(), demo.output()  # at once, and not a moment later
    assert "\nTraceback" not in demo.output(), demo.output()  # of ours: torchrun prints its own when it is stopped


@pytest.mark.slow
@pytest.mark.parametrize("moment", [pytest.param("hosts ready", marks=pytest.mark.full), "start rank:0"])
def test_demo_that_is_killed_leaves_nothing(demo: Demo, moment: str) -> None:
    demo.wait_for(moment)
    demo.process.kill()
    demo.assert_nothing_left()


@pytest.mark.parametrize(
    ("having", "found"),
    [
        (["own", "venv", "conda", "path"], "own/python"),
        (["venv", "conda", "path"], "venv/bin/python"),
        (["conda", "path"], "conda/bin/python"),
        (["path"], "path/python3"),
        ([], None),
    ],
)
def test_the_demo_finds_a_python_with_torch(
    having: list[str], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons = {"own": "own/python", "venv": "venv/bin/python", "conda": "conda/bin/python", "path": "path/python3"}
    for name, path in pythons.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(f"#!/bin/sh\nexit {int(name not in having)}\n")
        (tmp_path / path).chmod(0o755)
    (tmp_path / "path" / "python").symlink_to("python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / pythons["own"]))
    folders = {name: str(tmp_path / folder) for name, folder in (("VIRTUAL_ENV", "venv"), ("CONDA_PREFIX", "conda"))}
    environment = {**folders, "PATH": str(tmp_path / "path")}
    if found is not None:
        assert with_torch.find(None, environment) == str(tmp_path / found)
        chosen = str(tmp_path / pythons["path"])
        assert with_torch.find(chosen, environment) == chosen
        return
    with pytest.raises(FindingsError, match=r"own/python -m pip install torch(?s:.*)--python") as raised:
        with_torch.find(None, environment)
    assert all(str(raised.value).count(f"{path} ") == 1 + (name == "own") for name, path in pythons.items())
    assert "path/python " not in str(raised.value)


def test_a_python_without_torch_that_was_chosen_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "demo", "--python", "/bin/false"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3 and "/bin/false lacks" in done.stderr, done.stderr


def test_the_next_commands_work_where_they_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = tmp_path / "my env" / "bin"
    bin_folder.mkdir(parents=True)
    program = bin_folder / "ddp-orch"
    program.write_text("#!/bin/sh\necho it works\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python3"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (elsewhere, tmp_path, bin_folder):
        monkeypatch.chdir(folder)
        command = demo_module.typed_name()
        assert ".." not in command
        assert subprocess.run(command, shell=True, capture_output=True, text=True).stdout == "it works\n", command
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin")
    assert demo_module.typed_name() == "ddp-orch"
