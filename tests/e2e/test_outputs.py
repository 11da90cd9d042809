"""What runs of one name leave on a host: resumed, fetched, kept when the runs are pruned. The host is this machine."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from . import driver
from .local import orch

TRAIN = """
import os, pathlib
out = pathlib.Path(os.environ["DDP_ORCH_OUTPUT_DIR"])
(out / "logs").mkdir(exist_ok=True)
count = out / "count"
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
(out / "logs" / f"{number}.json").write_text("{}")
"""


def test_a_shell_script_is_told_the_variable_of_its_output_folder(tmp_path: Path) -> None:
    """Placeholders are replaced in arguments, and it has none."""
    (tmp_path / "run.sh").write_text("mkdir '{output}'\necho x > '{output}/last.pt'\n")
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    (tmp_path / "inventory.yaml").write_text(hosts + "run: {launcher: skypilot}\n")
    done = orch(tmp_path, "up", "inventory.yaml", "--skip-check", "--", "bash", "run.sh")
    assert done.returncode == 0, done.stderr
    assert ': --out "$DDP_ORCH_OUTPUT_DIR"' in done.stderr and "{output} is replaced" in done.stderr, done.stderr


def test_files_beside_the_code_are_fetched_and_kept_until_then(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nopen('model.pt', 'w').close()\nopen('conf', 'a').write('changed')")
    (tmp_path / "conf").write_text("as sent")
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(hosts + "run: {launcher: direct, sync: [train.py, conf], keep: {runs: 1}}\n")

    def up(name: str) -> str:
        done = orch(tmp_path, "up", "inventory.yaml", "--name", name, "--skip-check", "--", "train.py")
        assert done.returncode == 0, done.stderr
        return done.stderr

    said = up("first")
    assert ": conf, model.pt on me" in said and "ddp-orch fetch" in said
    where = Path(re.search(r"\n  in (/.*)", said)[1])  # type: ignore[index]
    assert (where / "model.pt").is_file()
    up("second")
    said = up("third")
    assert "run.keep" not in said, said  # few bytes
    pruned = orch(tmp_path, "prune", "inventory.yaml").stderr
    assert re.search(r"\bme: 2 runs .*\brun\.keep\b", pruned) and "not fetched: " in pruned, pruned

    done = orch(tmp_path, "fetch", "first")
    assert done.returncode == 0 and "2 files to fetch" in done.stderr, done.stderr
    assert (tmp_path / "first/me/code/conf").read_text() == "as sentchanged"
    assert (tmp_path / "first/me/code/model.pt").is_file()
    assert "removed 1 run, " in orch(tmp_path, "prune", "inventory.yaml").stderr
    assert not where.exists()
    forced = orch(tmp_path, "prune", "inventory.yaml", "--force").stderr
    assert "removed 1 run, " in forced and "run.keep" not in forced, forced
    missed = orch(tmp_path, "fetch", "third", "*.pt")
    assert missed.returncode == 2 and "are in code/: 'code/*.pt'" in missed.stderr, missed.stderr
    again = orch(tmp_path, "fetch", "third", "code/*.pt")
    assert again.returncode == 0 and [path.name for path in (tmp_path / "third/me/code").iterdir()] == ["model.pt"]


@pytest.mark.parametrize(
    "command",
    [
        ("check", "inventory.yaml", "--deep"),
        pytest.param(
            ("bench", "inventory.yaml", "--", "--bench-seconds=0.1"), marks=[pytest.mark.slow, pytest.mark.full]
        ),
    ],
    ids=lambda command: command[0],
)
def test_a_measurement_deletes_no_runs_and_no_outputs(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nopen(os.environ['DDP_ORCH_OUTPUT_DIR'] + '/model.pt', 'w').close()\n"
    )
    host = f"{{name: me, address: localhost, python: {sys.executable}}}"
    keep = "keep: {runs: 1, outputs: 1}"
    (tmp_path / "inventory.yaml").write_text(f"hosts: [{host}]\nrun: {{launcher: direct, sync: [train.py], {keep}}}\n")

    def up(*options: str) -> None:
        done = orch(tmp_path, "up", "inventory.yaml", *options, "--skip-check", "--", "train.py")
        assert done.returncode == 0, done.stderr

    def ids() -> list[str]:
        return [run["run_id"] for run in json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)]

    up()
    up("--name", "second")
    first, second = sorted(ids())
    (output,) = (tmp_path / "state").glob(f"*/out/{first}")
    for path in (output / "model.pt", output):
        os.utime(path, (time.time() - 3 * 86400,) * 2)
    done = orch(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert {first, second} < set(ids()) and (output / "model.pt").exists(), done.stderr
    up("--name", "third")
    assert first not in ids() and not output.exists()
    assert (second in ids()) is (command[0] == "check")  # its run takes the place of no other


def test_the_command_that_resumes_a_failed_run_finds_what_it_saved_beside_the_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nprint('last.pt is', 'here' if os.path.exists('last.pt') else 'missing')\n"
        "open('last.pt', 'w').close()\nraise SystemExit(3)\n"
    )
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    (tmp_path / "inventory.yaml").write_text(hosts + "run: {launcher: direct, sync: [train.py]}\n")
    failed = orch(tmp_path, "up", "inventory.yaml", "--name", "job", "--skip-check", "--", "train.py")
    assert failed.returncode == 1 and "last.pt is missing" in failed.stdout, failed.stderr
    (command,) = re.findall(r"^  ddp-orch (\S.*?) +# resume", failed.stderr, re.MULTILINE)
    assert "last.pt is here" in orch(tmp_path, *command.split()).stdout


def test_files_beside_the_code_of_one_run_never_replace_those_of_another(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nlen(sys.argv) > 1 and open('metrics.csv', 'a').write(sys.argv[1])")
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
        "run: {launcher: direct, sync: [train.py]}\n"
    )
    here = tmp_path / "m2" / "me"

    def fetched() -> dict[str, str]:
        return {str(path.relative_to(here)): path.read_text() for path in here.rglob("*") if path.is_file()}

    def fetch(*words: str) -> str:
        done = orch(tmp_path, "fetch", *words)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def up(*words: str) -> None:
        done = orch(tmp_path, "up", "inventory.yaml", "--name", "m2", "--skip-check", "--", "train.py", *words)
        assert done.returncode == 0, done.stderr

    for word in ("one", "two"):
        up(word)
        said = fetch("m2")
    old, new = [run["run_id"] for run in json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)]
    both = {"code/metrics.csv": "one", f"code-{new}/metrics.csv": "two"}
    assert fetched() == both and f"m2/HOST/code-{new}" in said and old in said
    fetch(old)
    fetch("m2")
    assert fetched() == both

    # what an older version has fetched has no note of its run; the older run must not replace the newer one
    (tmp_path / "m2" / ".ddp-orch-code.json").unlink()
    (here / f"code-{new}" / "metrics.csv").replace(here / "code" / "metrics.csv")
    (here / f"code-{new}").rmdir()
    fetch(old, "code/*.csv")
    fetch("m2")
    both = {"code/metrics.csv": "two", f"code-{old}/metrics.csv": "one"}
    assert fetched() == both

    up("three")
    up()
    old, new = [run["run_id"] for run in json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)][-2:]
    assert f"fetch {old}" in fetch("m2")
    fetch(old)
    assert old not in fetch("m2")


def test_a_file_that_is_newer_here_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
        "run: {launcher: direct, sync: [train.py]}\n"
    )

    def up() -> None:
        done = orch(tmp_path, "up", "inventory.yaml", "--name", "mine", "--skip-check", "--", "train.py")
        assert done.returncode == 0, done.stderr

    up()
    assert orch(tmp_path, "fetch").returncode == 0
    edited = tmp_path / "mine" / "me" / "count"
    edited.write_text("edited here")
    done = orch(tmp_path, "fetch")
    assert done.returncode == 1 and "mine/me/count" in done.stderr, done.stderr
    assert edited.read_text() == "edited here"
    up()  # it writes a newer one
    done = orch(tmp_path, "fetch")
    assert done.returncode == 0 and edited.read_text() == "2", done.stderr


def test_outputs_on_a_shared_disk_resume_and_are_fetched_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "\nimport sys; (pathlib.Path(sys.argv[1]) / 'argument').touch()")
    (tmp_path / "disk").mkdir()
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
        f"run: {{launcher: direct, sync: [train.py], output: {tmp_path / 'disk'}, args: ['{{output}}']}}\n"
    )
    for _ in range(2):
        command = ["up", "inventory.yaml", "--name", "mine", "--skip-check", "--", "train.py"]
        done = orch(tmp_path, *command, "{output}", "$DDP_ORCH_OUTPUT_DIR/x")
        assert done.returncode == 0, done.stderr
    assert re.search(r"\$DDP_ORCH_OUTPUT_DIR/x\b.*'\{output\}/x'", done.stderr)
    assert re.search(r"\bme: .*\bof mine\b", done.stderr)
    assert re.search(rf"\bddp-orch fetch\b.* {tmp_path}/disk/mine ", done.stderr)
    assert orch(tmp_path, "fetch").returncode == 0
    files = sorted(
        str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if path.is_file()
    )
    named = orch(tmp_path, "prune", "inventory.yaml", "--outputs", "--run", "mine")
    assert named.returncode == 2 and f" {tmp_path}/disk/mine (run.output)" in named.stderr, named.stderr
    assert files == [".gitignore", "shared/argument", "shared/count", "shared/logs/0.json", "shared/logs/1.json"]
    assert re.search(r"\b0 files .*\b4 unchanged\b", orch(tmp_path, "fetch").stderr)


def test_a_run_that_wrote_nothing_is_said_to_have_no_outputs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
        "run: {launcher: direct, sync: [train.py]}\n"
    )
    done = orch(tmp_path, "up", "inventory.yaml", "--name", "mine", "--skip-check", "--", "train.py")
    assert done.returncode == 0 and "$DDP_ORCH_OUTPUT_DIR" not in done.stderr, done.stderr
    done = orch(tmp_path, "fetch", "mine")
    assert done.returncode == 0 and " $DDP_ORCH_OUTPUT_DIR " in done.stderr
    assert not (tmp_path / "mine").exists()


def test_a_name_resumes_in_its_folder_which_is_fetched_and_outlives_its_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    inventory = tmp_path / "inventory.yaml"
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    inventory.write_text(hosts + "run: {launcher: direct, sync: [train.py]}\n")
    for _ in range(2):
        done = orch(tmp_path, "up", "inventory.yaml", "--name", "mine", "--skip-check", "--", "train.py")
        assert done.returncode == 0, done.stderr
    assert re.search(r"\bme: .*\bof mine\b", done.stderr)
    done = orch(tmp_path, "fetch")  # the newest
    assert done.returncode == 0 and "3 files" in done.stderr, done.stderr
    assert (tmp_path / "mine" / "me" / "count").read_text() == "2"
    assert sorted(path.name for path in (tmp_path / "mine" / "me" / "logs").iterdir()) == ["0.json", "1.json"]
    again = orch(tmp_path, "fetch", "mine", "**/*.json")
    assert again.returncode == 0 and re.search(r"\b0 files .*\b2 unchanged\b", again.stderr)
    assert orch(tmp_path, "fetch", "mine", "*.pt").returncode == 2

    inventory.write_text(hosts + "run: {keep: {runs: 1}}\n")
    pruned = orch(tmp_path, "prune", "inventory.yaml")
    assert pruned.returncode == 0 and "me: removed 1 run, " in pruned.stderr, pruned.stderr
    unchanged = orch(tmp_path, "prune", "inventory.yaml").stderr
    assert re.search(r"\bkept 1 \w+ run\b", unchanged) and "removed" not in unchanged
    (output,) = (tmp_path / "state").glob("*/out/mine/count")
    assert output.read_text() == "2"


def test_outputs_are_deleted_when_that_is_asked_for_and_agreed_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    (tmp_path / "inventory.yaml").write_text(hosts + "run: {launcher: direct, sync: [train.py]}\n")
    for name in (["--name", "mine"], []):
        assert orch(tmp_path, "up", "inventory.yaml", *name, "--skip-check", "--", "train.py").returncode == 0

    def kept() -> list[str]:
        return sorted(path.parent.name for path in (tmp_path / "state").glob("*/out/*/count"))

    unnamed, _ = kept()
    asked = orch(tmp_path, "prune", "inventory.yaml", "--outputs")
    assert asked.returncode == 2 and "--yes" in asked.stderr, asked.stderr
    assert asked.stdout.splitlines()[1].startswith(f"{unnamed}  me ") and len(kept()) == 2
    done = orch(tmp_path, "prune", "inventory.yaml", "--outputs", "--yes")
    assert done.returncode == 0 and "deleted 1 output folder, " in done.stderr, done.stderr
    assert kept() == ["mine"]
    assert orch(tmp_path, "prune", "inventory.yaml", "--outputs", "--run", "nobody").returncode == 2
    mine = next(
        run["run_id"] for run in json.loads(orch(tmp_path, "ps", "--all", "--json").stdout) if run["name"] == "mine"
    )
    assert orch(tmp_path, "prune", "inventory.yaml", "--outputs", "--run", mine, "--yes").returncode == 0
    assert kept() == []
    assert orch(tmp_path, "prune", "inventory.yaml", "--run", "mine").returncode == 0  # its record too
    assert [run["run_id"] for run in json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)] == [unnamed]
    assert orch(tmp_path, "prune", "inventory.yaml", "--run", "mine").returncode == 2


def test_what_is_brought_here_does_not_travel_with_the_code_of_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\nrun: {{launcher: direct}}\n"
    )
    (tmp_path / ".gitignore").write_text("state*\nddp-orch\n")

    def up() -> str:
        done = orch(tmp_path, "up", "inventory.yaml", "--skip-check", "--", "train.py")
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stderr.splitlines() if "code: " in line)

    first = up()
    assert re.search(r"code: 3 files, \d+ bytes, ", first) and str(tmp_path) in first
    for command in (
        ["fetch"],
        ["fetch", "-o", "results/all"],
        ["logs", "-o", "logs"],
        ["report"],
        ["report", "-o", "x.html"],
    ):
        done = orch(tmp_path, *command)
        assert done.returncode == 0, done.stderr
    assert list((tmp_path / "results").glob("all/me/count")) and list(tmp_path.glob("*.html"))
    assert up() == first


def test_outputs_whose_run_is_known_no_more_are_fetched_by_the_name_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    inventory = tmp_path / "inventory.yaml"
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    inventory.write_text(hosts + "run: {launcher: direct, sync: [train.py], keep: {runs: 1}}\n")
    for name, removes in (("first", False), ("second", False), ("another", True)):
        done = orch(tmp_path, "up", "inventory.yaml", "--name", name, "--skip-check", "--", "train.py")
        assert done.returncode == 0 and "ddp-orch fetch" in done.stderr, done.stderr
        assert ("deleted 1 finished run" in done.stderr) is removes, done.stderr
    assert "removed 1 run" in orch(tmp_path, "prune", "inventory.yaml").stderr
    assert "first" not in orch(tmp_path, "ps", "--all").stdout
    done = orch(tmp_path, "fetch", "first")
    assert done.returncode == 0 and "2 files" in done.stderr, done.stderr
    assert (tmp_path / "first" / "me" / "count").read_text() == "1"
    for unknown in ("third", "..", "first/logs"):
        done = orch(tmp_path, "fetch", unknown)
        assert done.returncode == 2 and "no run" in done.stderr, (unknown, done.stderr)


def test_of_a_run_that_goes_on_fetch_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "print('written', flush=True)\nimport time; time.sleep(600)")
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
        "run: {launcher: direct, sync: [train.py]}\n"
    )
    started = orch(tmp_path, "up", "-d", "inventory.yaml", "--name", "mine", "--skip-check", "--", "train.py")
    try:
        assert started.returncode == 0, started.stderr
        wait_until(lambda: "written" in orch(tmp_path, "logs", "mine").stdout, 60, "it has written")
        done = orch(tmp_path, "fetch", "mine")
        assert done.returncode == 0, done.stderr
        while_running = sum(line.startswith("run ") for line in done.stderr.splitlines())
    finally:
        assert orch(tmp_path, "kill", "--all", "--grace", "1").returncode == 0
    after_it = sum(line.startswith("run ") for line in orch(tmp_path, "fetch", "mine").stderr.splitlines())
    assert (while_running, after_it) == (1, 0)
    over = orch(tmp_path, "logs", "-f", "mine")
    assert over.returncode == 130 and "ddp-orch restart mine" in over.stderr


def test_fetch_names_the_host_whose_file_is_the_newest(lab2: Lab) -> None:
    saves = """
import os, time
path = os.environ["DDP_ORCH_OUTPUT_DIR"] + "/ckpt.pt"
open(path, "w").close()
written = time.time() - 2100 * (1 - int(os.environ["RANK"]))
os.utime(path, (written, written))
"""
    inventory = lab2.inventory(run={"launcher": "direct"})
    driver.ok(driver.orch(lab2, "up", inventory, "--name", "mine", "--", driver.script(lab2, saves)))
    told = driver.ok(driver.orch(lab2, "fetch", "mine", "-i", inventory)).stderr
    assert re.search(r"node-1 .*newest ckpt\.pt; .*node-0\b.* 35 min\b", told), told


def test_fetch_names_a_host_that_has_no_record_of_a_run_that_continues(lab2: Lab) -> None:
    driver.script(lab2, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    inventory = lab2.inventory(run={"launcher": "direct"})
    run = driver.start(lab2, inventory, "--", "train.py")
    lab2.hosts[1].sh("echo export DDP_ORCH_STATE_DIR=/home/ann/elsewhere > ~/.bashrc", check=True)
    fetched = driver.orch(lab2, "fetch", run, "-i", inventory)
    assert "node-1 answers without a record" in fetched.stderr and "ddp-orch revive" in fetched.stderr, fetched.stderr
    lab2.hosts[0].sh("echo export DDP_ORCH_STATE_DIR=/home/ann/elsewhere > ~/.bashrc", check=True)
    for command in ("logs", "fetch"):
        unknown = driver.orch(lab2, command, run, "-i", inventory)
        assert unknown.returncode == 2 and "state_dir" in unknown.stderr, unknown.stderr
    for host in lab2.hosts:
        host.sh("rm ~/.bashrc", check=True)
    driver.ok(driver.orch(lab2, "kill", run, "-i", inventory, "--grace", "0"))


def test_fetch_does_not_say_what_it_cannot_know_while_no_host_answers(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [{name: me, address: 127.0.0.1, port: 1}]\n")
    asked = orch(tmp_path, "fetch", "20261129-120000-abcd")
    assert asked.returncode == 4 and "not be asked" in asked.stderr and "no record" not in asked.stderr


def test_a_run_in_the_state_dir_of_the_inventory_outlives_the_home_folders(lab2: Lab) -> None:
    script = """
import os, time
open(os.environ["DDP_ORCH_OUTPUT_DIR"] + "/ckpt.pt", "w").close()
print("ready", flush=True)
time.sleep(600)
"""
    driver.script(lab2, script)
    defaults = {"user": "ann", "python": lab2.python, "state_dir": "/var/tmp/disk/ddp-orch"}
    inventory = lab2.inventory(defaults=defaults, run={"launcher": "direct", "max_restarts": 1})
    run = driver.start(lab2, inventory, "--", "train.py")
    lab2.hosts[1].crash()
    lab2.hosts[1].boot()
    for host in lab2.hosts:
        assert host.sh("find ~ -name runs").stdout == "", "the home is not used"
        host.sh("find ~ -mindepth 1 -maxdepth 1 ! -name .ssh -exec rm -r {} +", check=True)
    driver.ok(driver.orch(lab2, "revive", run, "-i", inventory))
    wait_until(lambda: driver.runs(lab2, inventory)[run]["attempt"] == 2, 60, "the second attempt runs")
    driver.ok(driver.orch(lab2, "kill", run, "-i", inventory, "--grace", "0"))
    driver.ok(driver.orch(lab2, "fetch", run, "-i", inventory, "-o", "got"))
    assert list((driver.code(lab2) / "got").rglob("ckpt.pt"))
