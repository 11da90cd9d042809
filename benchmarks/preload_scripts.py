"""Whether programs behave the same in a forked rank, with `run.preload`, as under `python script.py`.

preload_scripts.yaml lists the programs. FOLDER holds the code of others that it names, and the environments that run
it. Each program runs in four ways in a new copy of its code, with `launcher: direct` on one host that is a folder:

  exec       `preload: none`
  python     no launcher: `python -u COMMAND`, with the variables that a rank has
  forked     `preload: auto`
  restarted  the next attempt: before it, the preloader has imported what the script imports. If the program does not
             fail, its first ranks are killed when they begin

Output is compared line by line, without times, pids, speeds, addresses and the names of temporary files. If a rank
fails, only its output is compared: the others are ended at a time that differs. If `exec` differs from `python`, it
runs again, to tell what is not repeatable.

    python benchmarks/preload_scripts.py FOLDER [--only TEXT]... [--diffs FOLDER]
"""

from __future__ import annotations

import argparse
import difflib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "node"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

import masked_output
import preload_table
import results
from lab.waiting import wait_until
from local_runs import Run, Runs, impatient_program, local_runs

from orchestrator.node.host import processes

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).with_suffix(".yaml")
LIMIT = 600.0  # s of a run
BY_EXEC = re.compile(r"^.*started without run\.preload: (.*)\n", re.MULTILINE)
TORCH = "2.13.0"  # any version: `preload: auto` is for hosts with torch
ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@dataclass(frozen=True)
class Program:
    """`folder`: below FOLDER, copied for each run. `cwd`: in the copy. `changes`: texts to replace in its files."""

    name: str
    source: str
    command: tuple[str, ...]
    special: str
    folder: str = ""
    cwd: str = "."
    files: dict[str, str] = field(default_factory=dict)
    changes: dict[str, dict[str, str]] = field(default_factory=dict)
    prepare: str = ""
    environment: str = "venv"
    ranks: int = 1
    preload: str = "auto"
    env: dict[str, str] = field(default_factory=dict)
    masks: tuple[str, ...] = ()
    unordered: bool = False
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """`outputs`: by rank and stream, as they were. `why_not`: why the ranks were not forked."""

    end: str
    outputs: dict[str, str]
    why_not: str = ""


def load() -> list[Program]:
    programs = []
    for each in yaml.safe_load(PROGRAMS.read_text()):
        each["command"] = tuple(map(str, each["command"]))
        each["masks"] = tuple(each.get("masks", ()))
        programs.append(Program(**each))
    return programs


class Trial:
    """Runs programs. `work`: a folder with the same path for each run, so that tracebacks are the same."""

    def __init__(self, code: Path, temporary: Path) -> None:
        self._code = code
        self._work = temporary / "work"
        self._hosts = temporary / "hosts"
        self._environments: dict[tuple[str, int], list[dict[str, str]]] = {}
        self._node_program = impatient_program()

    def run(self, program: Program, variant: str) -> Outcome:
        self._fill(program)
        if variant == "python":
            return self._under_python(program)
        with self._runs(program) as runs:
            return self._as_ranks(runs, program, variant)

    def _fill(self, program: Program) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        if program.folder:
            shutil.copytree(self._code / program.folder, self._work)
        self._work.mkdir(exist_ok=True)
        for name, text in program.files.items():
            path = self._work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, replacements in program.changes.items():
            path = self._work / name
            text = path.read_text()
            for old, new in replacements.items():
                if old not in text:
                    sys.exit(f"{program.name}: {name} does not contain {old!r}")
                text = text.replace(old, new)
            path.write_text(text)
        if program.prepare:
            argv = [self._python(program), "-c", program.prepare]
            subprocess.run(argv, cwd=self._work / program.cwd, check=True)

    def _python(self, program: Program) -> str:
        return str(self._code / program.environment / "bin" / "python")

    @contextmanager
    def _runs(self, program: Program) -> Iterator[Runs]:
        shutil.rmtree(self._hosts, ignore_errors=True)
        self._hosts.mkdir()
        with local_runs(self._hosts, self._node_program, self._work / program.cwd) as runs:
            yield runs

    def _start(self, runs: Runs, program: Program, command: tuple[str, ...], options: str) -> Run:
        first = command[:1] if command[0] in ("-c", "-m") else ()
        code, *arguments = command[len(first) :]
        return runs.start(
            code, *arguments, command=first, nproc=[program.ranks], torch=TORCH, grace=0.0, options=options,
            env=program.env, python=self._python(program),
        )  # fmt: skip

    def _as_ranks(self, runs: Runs, program: Program, variant: str) -> Outcome:
        preload = "none" if variant == "exec" else program.preload
        is_restarted = variant == "restarted"
        run = self._start(runs, program, program.command, f"preload: {preload}, max_restarts: {int(is_restarted)}")
        if is_restarted:
            kill_first_attempt(run, program.ranks)
        (record,) = run.wait_over(timeout=LIMIT)
        return outcome_of(run, record["verdict"], 2 if is_restarted else 1)

    def run_failing(self, program: Program) -> tuple[Outcome, Outcome]:
        """`forked` and `restarted`, in one run: a program that fails is restarted anyway."""
        self._fill(program)
        with self._runs(program) as runs:
            run = self._start(runs, program, program.command, f"preload: {program.preload}, max_restarts: 1")
            (record,) = run.wait_over(timeout=LIMIT)
            return outcome_of(run, record["verdict"], 1), outcome_of(run, record["verdict"], 2)

    def _under_python(self, program: Program) -> Outcome:
        ranks = []
        port = str(free_port())
        for rank, environment in enumerate(self._rank_environments(program)):
            with self._output(rank, "out").open("wb") as stdout, self._output(rank, "err").open("wb") as stderr:
                process = subprocess.Popen(
                    [self._python(program), "-u", *program.command],
                    cwd=self._work / program.cwd,
                    env={**environment, **program.env, "MASTER_PORT": port},
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            ranks.append(process)
        failed = wait_for_ranks(ranks)
        outputs = {
            f"{rank}.{channel}": self._output(rank, channel).read_bytes().decode(errors="replace")
            for rank in ([failed] if failed is not None else range(len(ranks)))
            for channel in ("out", "err")
        }
        code = 0 if failed is None else ranks[failed].returncode
        return Outcome(signal.Signals(-code).name if code < 0 else str(code), outputs)

    def _output(self, rank: int, channel: str) -> Path:
        return self._work.parent / f"{rank}.{channel}"

    def _rank_environments(self, program: Program) -> list[dict[str, str]]:
        """The variables of each rank, as one prints them."""
        key = program.environment, program.ranks
        if key not in self._environments:
            plain = Program(program.name, "", (), "", environment=program.environment, ranks=program.ranks)
            with self._runs(plain) as runs:
                run = self._start(runs, plain, ("-c", ENVIRONMENT), "preload: none")
                run.wait_over()
                printed = run.journal()
            self._environments[key] = [json.loads(printed[f"1.{rank}.out"]) for rank in range(program.ranks)]
        return self._environments[key]


def outcome_of(run: Run, verdict: dict[str, Any], attempt: int) -> Outcome:
    failures = [each for each in (*verdict["failures"], verdict["first_failure"]) if each]
    failure = next((each for each in failures if each["attempt"] == attempt), None)
    outputs = {}
    why_not = ""
    for stream, text in run.journal().items():
        number, rank, channel = stream.split(".")
        if number == str(attempt) and rank.isdigit() and (failure is None or failure["rank"] == int(rank)):
            decoded = text.decode(errors="replace").replace(run.run_id, "RUN")
            why_not = why_not or next(iter(BY_EXEC.findall(decoded)), "")
            outputs[f"{rank}.{channel}"] = BY_EXEC.sub("", decoded)
    return Outcome(ending(failure), outputs, why_not)


def kill_first_attempt(run: Run, count: int) -> None:
    """Kill a rank as soon as all have begun: one that ends before that ends the preloader with the attempt."""

    def ranks() -> list[processes.Process]:
        found = [each.process for each in processes.below(run.guard().pid) if is_rank(each.process.pid)]
        return found if len(found) >= count else []

    found = wait_until(ranks, LIMIT, "the ranks of the first attempt")
    processes.send(found[0], signal.SIGKILL)


def is_rank(pid: int) -> bool:
    """Not the preloader, whose stdout is a file, nor a process that a rank has started."""
    try:
        return os.getsid(pid) == pid and bool(re.fullmatch(r"1\.\d+\.out", Path(f"/proc/{pid}/fd/1").readlink().name))
    except OSError:
        return False  # it has ended


def ending(failure: dict[str, Any] | None) -> str:
    if failure is None:
        return "0"
    return str(failure["signal"] or failure["exit_code"])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for_ranks(ranks: list[subprocess.Popen[bytes]]) -> int | None:
    """The first rank that has failed, after all have ended."""
    deadline = time.monotonic() + LIMIT
    failed = None
    while failed is None and any(rank.poll() is None for rank in ranks):
        failed = next((number for number, rank in enumerate(ranks) if rank.poll()), None)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    if failed is None:
        failed = next((number for number, rank in enumerate(ranks) if rank.poll() != 0), None)
    for rank in ranks:
        try:
            os.killpg(rank.pid, signal.SIGKILL)  # also what they have left behind
        except ProcessLookupError:
            pass
        rank.wait()
    return failed


def lines_of(program: Program, outcome: Outcome) -> list[str]:
    return masked_output.lines(outcome.outputs, program.masks, program.unordered)


def tracebacks(program: Program, outcome: Outcome) -> list[str]:
    return masked_output.tracebacks(outcome.outputs, program.masks, program.unordered)


def compare(program: Program, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """What of a program is not the same. Each value names the variants that differ from `exec`."""
    first = outcomes["exec"]
    own: dict[str, Callable[[Program, Outcome], object]]
    own = {"output": lines_of, "end": lambda _, outcome: outcome.end, "traceback": tracebacks}
    different = {
        what: [name for name, outcome in outcomes.items() if of(program, outcome) != of(program, first)]
        for what, of in own.items()
    }
    return {
        "end": first.end,
        "tracebacks": len(tracebacks(program, first)),
        "lines": sum(text.count("\n") for text in first.outputs.values()),
        "why_not": outcomes["forked"].why_not,
        "different": different,
    }


def difference(program: Program, outcomes: dict[str, Outcome], name: str) -> str:
    before, after = (lines_of(program, outcomes[each]) for each in ("exec", name))
    return "\n".join(difflib.unified_diff(before, after, "exec", name, lineterm="", n=1))


def add(programs: list[Program], name: str, row: dict[str, Any]) -> None:
    """Keep the other rows, also those that another comparison adds at the same time."""
    with (results.RESULTS / "preload_scripts.md").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        stored = results.RESULTS / "preload_scripts.json"
        rows = json.loads(stored.read_text())["programs"] if stored.exists() else {}
        rows[name] = row
        rows = {each.name: rows[each.name] for each in programs if each.name in rows}
        results.write("preload_scripts", {"programs": rows})
        handle.truncate(0)
        handle.write(preload_table.page(programs, rows))


def newest_commit() -> str:
    """The newest one that has changed what runs on hosts."""
    code = "orchestrator/node"
    log = ["git", "log", "-1", "--format=%h", "--", code]
    changes = subprocess.check_output(["git", "status", "--porcelain", code], text=True, cwd=ROOT)
    return subprocess.check_output(log, text=True, cwd=ROOT).strip() + ("-dirty" if changes else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with a folder for each source")
    parser.add_argument("--only", action="append", help="run programs whose name contains this; keep the other rows")
    parser.add_argument("--diffs", type=Path, help="folder for the differences")
    asked = parser.parse_args()
    programs = load()
    chosen = [each for each in programs if not asked.only or any(text in each.name for text in asked.only)]
    with tempfile.TemporaryDirectory(prefix="scripts-") as name:
        trial = Trial(asked.folder.resolve(), Path(name))
        for program in chosen:
            try:
                outcomes = {variant: trial.run(program, variant) for variant in ("exec", "python")}
                if outcomes["exec"].end == "0":
                    outcomes.update({variant: trial.run(program, variant) for variant in ("forked", "restarted")})
                else:
                    outcomes["forked"], outcomes["restarted"] = trial.run_failing(program)
            except AssertionError as error:  # a run did not end in time
                print(f"{program.name}: {error}", flush=True)
                continue
            row = compare(program, outcomes)
            if "python" in row["different"]["output"]:
                outcomes["exec again"] = trial.run(program, "exec")
                row = compare(program, outcomes)
            row["commit"] = newest_commit()
            print(f"{program.name}: {row['different']} {row['why_not']}", flush=True)
            if asked.diffs:
                asked.diffs.mkdir(exist_ok=True)
                texts = [difference(program, outcomes, each) for each in outcomes]
                (asked.diffs / f"{program.name}.diff".replace("/", "_")).write_text("\n".join(texts))
            add(programs, program.name, row)


if __name__ == "__main__":
    main()
