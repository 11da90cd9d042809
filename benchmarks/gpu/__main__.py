"""`make gpu`: everything that needs a GPU, on this machine: the tests marked gpu and the benchmarks. Builds nothing.

    python benchmarks/gpu [--device cpu] [--only PART ...] [--again] [--limit SECONDS] [--out FOLDER]

Each part is a program that writes its figures to OUT/gpu_PART.json, and is killed after its time limit. A part that
has run on the same code is not run again, so a run that was interrupted continues. A part that needs a missing program
or package says so and counts as skipped. OUT/gpu.md is a summary of one page. Exits with 1 if a part failed.

`--device cpu` runs all parts on tiny sizes: it tests the parts themselves. Needs no package beside those of a part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import summary

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 530  # s for all parts
LEAST = 10  # s that must be left to start a part
KEPT = 6000  # characters of the output of a part that failed
SOURCES = ("trainer", "orchestrator", "benchmarks/gpu", "tests/gpu", "tests/e2e")


@dataclass(frozen=True)
class Part:
    name: str
    limit: int  # s
    program: tuple[str, ...]  # of benchmarks/gpu, with arguments


PARTS = (
    Part("facts", 60, ("facts.py",)),
    Part("tests", 170, ("marked.py",)),
    Part("gpt2", 130, ("training.py", "gpt2")),
    Part("resnet50", 130, ("training.py", "resnet50")),
    Part("commands", 100, ("commands.py",)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--again", action="store_true", help="run parts that have run before, too")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds for all parts; default {LIMIT}")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results; with --device cpu: build/gpu")
    asked = parser.parse_args()
    out = (asked.out or ROOT / ("benchmarks/results" if asked.device == "cuda" else "build/gpu")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if part.name in asked.only]
    statuses = run_parts(parts, out, asked.device, digest(), time.monotonic() + asked.limit, asked.again)
    page = summary.page({part.name: read(out, part.name) for part in PARTS})
    (out / "gpu.md").write_text(page)
    print(page)
    return 1 if any(status in ("failed", "timed out") for status in statuses) else 0


def run_parts(
    parts: Sequence[Part], out: Path, device: str, sources: str, deadline: float, again: bool = False
) -> list[str]:
    """Run what has not run yet. Returns the status of each part."""
    statuses = []
    for part in parts:
        key = {"device": device, "sources": sources}
        before = read(out, part.name)
        same = {name: before.get(name) for name in key} == key
        if same and before.get("status") in ("ok", "skipped") and not again:
            print(f"{part.name}: {before['status']}, not run again (--again runs it)", flush=True)
            statuses.append(str(before["status"]))
            continue
        limit = min(part.limit, deadline - time.monotonic())
        if limit < LEAST:
            print(f"{part.name}: not started, as no time is left; start this program again to continue", flush=True)
            statuses.append("not started")
            continue
        if not same or again:
            write(out, part.name, {**key, "status": "started"})
        print(f"{part.name}: at most {limit:.0f} s ...", flush=True)
        statuses.append(run(part, out, device, limit))
    return statuses


def run(part: Part, out: Path, device: str, limit: float) -> str:
    """Run a part, which updates its file whenever it has a figure. Returns its status."""
    argv = [sys.executable, str(HERE / part.program[0]), *part.program[1:], str(out / f"gpu_{part.name}.json")]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": python_path(), "BENCHMARK_DEVICE": device}
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(process)
        output.seek(0)
        text = output.read()
    status = {0: "ok", summary.SKIPPED: "skipped", None: "timed out"}.get(code, "failed")
    figures = {**read(out, part.name), "status": status, "seconds": round(time.monotonic() - began, 1)}
    figures |= {"machine": figures.get("machine", {}), "output": "" if status == "ok" else text[-KEPT:]}
    write(out, part.name, figures)
    print(f"{part.name}: {status} after {figures['seconds']} s", flush=True)
    if status in ("failed", "timed out"):
        print("".join(f"    {line}\n" for line in text.splitlines()[-15:]), flush=True)
    return status


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the part. (The hosts of the demo are in another session: they end with the part's pipe.)"""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def digest() -> str:
    """Of the code that the parts measure: git may be missing on this machine."""
    content = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            content.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return content.hexdigest()[:16]


def read(out: Path, name: str) -> dict[str, object]:
    try:
        return dict(json.loads((out / f"gpu_{name}.json").read_text()))
    except (OSError, ValueError):
        return {}


def write(out: Path, name: str, figures: dict[str, object]) -> None:
    aside = out / f"gpu_{name}.json.tmp"
    aside.write_text(json.dumps(figures, indent=2) + "\n")
    aside.replace(out / f"gpu_{name}.json")


if __name__ == "__main__":
    sys.exit(main())
