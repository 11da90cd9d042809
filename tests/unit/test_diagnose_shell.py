"""The first cause of runs whose command is a shell script: what bash and its commands really print."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import decode
from orchestrator.answers.evidence import Evidence
from orchestrator.answers.runs import Verdict
from orchestrator.diagnosis import missing
from orchestrator.diagnosis.engine import Diagnosis
from orchestrator.diagnosis.record import UNKNOWN_COMMAND, Command
from orchestrator.output.finding import Finding
from orchestrator.output.lines import Line
from orchestrator.runs import diagnose as diagnose_run
from orchestrator.runs import recent, shell_scripts

HOSTS = ("a", "b")
SCRIPT = Command(("bash", "run.sh"))


def output_of(script: str, folder: Path, rank: int = 1, shell: str = "bash") -> tuple[list[Line], int]:
    """What a script prints, as its host records it, and its exit code. It ends at second 100."""
    (folder / "run.sh").write_text(script)
    ended = subprocess.run((shell, "run.sh"), cwd=folder, capture_output=True, text=True, check=False)
    lines = [
        Line(99.9, HOSTS[rank], rank, stream, 1, text)
        for stream, output in (("stdout", ended.stdout), ("stderr", ended.stderr))
        for text in output.splitlines()
    ]
    return lines, ended.returncode


def failure(rank: int, code: int, at: float = 100.0) -> dict[str, Any]:
    what = f"rank {rank}: exit code {code}"
    return {"at": at, "what": what, "rank": rank, "exit_code": code, "signal": None, "pid": 7}


def judge(lines: Sequence[Line], *failures: dict[str, Any], command: Command = SCRIPT) -> Diagnosis:
    """`failures`: the first of them is the one that the head saw first."""
    first = {**failures[0], "host": HOSTS[failures[0]["rank"]], "node": failures[0]["rank"]}
    verdict = decode(Verdict, {"state": "failed", "stopped_by": None, "first_failure": first}, "run")
    answers = {
        host: decode(
            Evidence,
            {
                "failures": [each for each in failures if each["rank"] == rank],
                "kernel": [],
                "oom_kills": 0,
                "dumps": [],
            },
            "evidence",
        )
        for rank, host in enumerate(HOSTS)
    }
    ranks = dict(enumerate(HOSTS))
    return diagnose_run.diagnose_last_attempt(lines, verdict, answers, ranks, same_code=True, command=command)


def first_of(script: str, folder: Path, shell: str = "bash", command: Command = SCRIPT) -> Finding:
    lines, code = output_of(script, folder, shell=shell)
    assert code > 0
    return judge(lines, failure(1, code), command=command).findings[0]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("ls /data/none", "/data/none"),
        ("ls . /data/none", "/data/none"),
        ("cp /data/none/corpus.txt x", "/data/none/corpus.txt"),
        ("cat cfg.json", "cfg.json"),
        ("cat 'my cfg.json'", "my cfg.json"),
        ("head -1 data/none.txt", "data/none.txt"),
        ("tail -1 data/none.txt", "data/none.txt"),
        ("tar xzf data/none.tgz", "data/none.tgz"),
        ("sed -n 1p none.txt", "none.txt"),
        ("grep word none.txt", "none.txt"),
        ("sort none.txt", "none.txt"),
        ("source env/none.sh", "env/none.sh"),
        ("source none.sh", "none.sh"),
        ("wc -l < none.txt", "none.txt"),
        ("./data/prep.sh", "./data/prep.sh"),
    ],
)
def test_a_file_that_a_command_of_the_script_does_not_find_is_the_cause(
    tmp_path: Path, command: str, path: str
) -> None:
    found = first_of(f"set -e\necho start\n{command}\necho never\n", tmp_path)
    assert (found.code.endswith("-missing") or found.code == "file-missing-on-host", found.rank) == (True, 1), found
    assert missing.path_of(found) == path
    assert "sys.exit" not in found.message
    everywhere = missing.check_hosts(found, path, dict.fromkeys(HOSTS, missing.NOT_THERE), HOSTS, "none")
    assert (everywhere.code, everywhere.confidence) == ("dataset-missing", "high")


@pytest.mark.parametrize("command", ["cat none.txt", "./data/prep.sh", ". ./none.sh", ". none.sh", "wc -l < none.txt"])
def test_so_is_it_in_the_words_of_another_shell(tmp_path: Path, command: str) -> None:
    assert first_of(f"set -e\n{command}\n", tmp_path, shell="dash").code == "file-missing-on-host"


@pytest.mark.parametrize("command", ["mkdir out/deep", "touch out/log.txt", "cp run.sh out/deep/x"])
def test_a_folder_that_a_command_would_write_to_is_to_be_made(tmp_path: Path, command: str) -> None:
    found = first_of(f"set -e\n{command}\n", tmp_path)
    assert found.code == "script-exception" and "mkdir -p out" in found.fix


def test_a_file_that_a_command_may_not_read_is_one_although_its_name_is_that_of_a_port(tmp_path: Path) -> None:
    lines = [Line(99.9, "b", 1, "stderr", 1, "mkdir: cannot create directory '/data/reports': Permission denied")]
    assert judge(lines, failure(1, 1)).findings[0].code == "file-permission-denied"


@pytest.mark.parametrize("at", [99.9, 20.0])
@pytest.mark.parametrize("later", ["step 1", None])
def test_an_error_after_which_the_script_continued_is_not_the_cause(
    tmp_path: Path, at: float, later: str | None
) -> None:
    lines, _ = output_of("ls /data/none\n", tmp_path)
    lines = [line._replace(at=at) for line in lines]
    lines += [Line(99.9, "b", 1, "stderr", 1, later)] if later else []
    found = judge(lines, failure(1, 3)).findings[0]
    assert (found.code == "unknown") == (later is not None or at == 20.0), found


def test_a_traceback_before_or_after_such_an_error_is_the_cause(tmp_path: Path) -> None:
    failing = "python3 -c 'labels = {}; labels[3]'"
    for script in (f"ls /data/none\n{failing}\n", f"{failing}\ncp out/none x\n"):
        assert first_of(script, tmp_path).code == "script-exception"


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    for shell in ("bash", "dash"):
        found = first_of("set -e\nno-such-program --fast\n", tmp_path, shell=shell)
        assert (found.code, "no-such-program" in found.evidence[-1]) == ("remote-env-differs", True)


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(("word", "code"), [("DATA_DIR", "remote-env-differs"), ("1", "script-bad-argument")])
def test_what_a_script_asks_for_in_its_own_words_is_named(tmp_path: Path, shell: str, word: str, code: str) -> None:
    found = first_of(f"echo ${{{word}:?is where the images are}}\n", tmp_path, shell=shell)
    assert (found.code, word in found.message) == (code, True), found


@pytest.mark.parametrize("raised", [False, True])
def test_a_read_only_disk_is_no_matter_of_owners(raised: bool) -> None:
    text = "mkdir: cannot create directory '/data/out': Read-only file system"
    if raised:
        text = "OSError: [Errno 30] Read-only file system: '/data/out'"
    before = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    save()"]
    lines = [Line(99.9, "b", 1, "stderr", 1, line) for line in [*(before if raised else []), text]]
    found = judge(lines, failure(1, 1)).findings[0]
    assert (found.code, "chown" in found.fix) == ("file-permission-denied", False)


# --- a silent end


def test_of_a_shell_script_that_ends_without_a_word_the_command_is_to_be_found(tmp_path: Path) -> None:
    silent = "set -e\necho start\ntest -f /data/none\n"
    found = first_of(silent, tmp_path)
    assert found.code == "unknown" and "set -e" in found.message and "sys.exit" not in found.message
    assert "bash -x run.sh" in found.fix and "--debug" not in found.fix
    traced = first_of(
        silent.replace("set -e", "set -ex"), tmp_path, command=Command(("bash", "run.sh"), is_traced=True)
    )
    assert "-x run.sh" not in traced.fix and "+ test -f /data/none" in traced.evidence


def test_debug_is_not_advised_where_it_was_on(tmp_path: Path) -> None:
    for command, advised in ((UNKNOWN_COMMAND, True), (Command(debug=True), False)):
        found = first_of("exit 3\n", tmp_path, command=command)
        assert ("sys.exit(3)" in found.message, "--debug" in found.fix) == (True, advised)
        aborted = judge([], failure(1, 127), command=command).findings[0]
        assert ("up --debug" in aborted.fix) == advised


@pytest.mark.parametrize(
    ("words", "shell", "traced"),
    [
        (("bash", "run.sh", "--lr", "1"), ("bash", "run.sh"), False),
        (("/bin/sh", "-e", "run.sh"), ("/bin/sh", "run.sh"), False),
        (("bash", "-ex", "run.sh"), ("bash", "run.sh"), True),
        (("bash", "-o", "pipefail", "run.sh"), ("bash", "run.sh"), False),
        (("bash", "-c", "set -e; ls /data"), ("bash", "-c", "'...'"), False),
        (("./start", "x"), ("bash", "./start"), False),
        (("train.py",), (), False),
        (("none.sh",), (), False),
    ],
)
def test_a_command_that_is_a_shell_script_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], shell: tuple[str, ...], traced: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "start").write_text("#!/usr/bin/env bash\nset -e\n")
    (tmp_path / "train.py").write_text("#!/usr/bin/env python3\n")
    recent.remember("inventory.yaml", "20261122-070000-0000", "mine", str(tmp_path))
    recent.remember_command("20261122-070000-0000", {"script": words, "debug": True})
    assert shell_scripts.describe_command("20261122-070000-0000") == Command(shell, traced, debug=True)
    assert shell_scripts.describe_command("another") == UNKNOWN_COMMAND


# --- cd


def test_a_cd_of_the_script_itself_is_to_be_removed(tmp_path: Path) -> None:
    for shell in ("bash", "dash"):
        found = first_of("set -e\ncd /home/none/sky_workdir\n", tmp_path, shell=shell)
        assert found.code == "script-exception" and "/home/none/sky_workdir" in found.message
        assert "sky_workdir" in found.fix and "run.sync" not in found.fix
    assert "sky_workdir" not in first_of("set -e\ncd /home/none/project\n", tmp_path).fix


def test_a_cd_after_which_the_script_continued_explains_only_a_missing_script(tmp_path: Path) -> None:
    script = "cd /home/none\npython3 -c 'labels = {}; labels[3]'\n"
    assert first_of(script, tmp_path).evidence[-1].startswith("KeyError")
    assert "cd: /home/none" in first_of("cd /home/none\npython3 trian.py\n", tmp_path).evidence[-1]
    silent = first_of("cd /home/none\necho step 1 >&2\nexit 3\n", tmp_path)
    assert silent.code == "unknown"


def test_a_script_that_python_cannot_open_is_no_matter_of_sync(tmp_path: Path) -> None:
    found = first_of("set -e\npython3 trian.py\n", tmp_path)
    assert found.code == "remote-workdir-missing" and "run.sync" not in found.fix


# --- environments, programs and variables


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    "path", ["/none/venv/bin/activate", "./none/bin/activate", "/none/etc/profile.d/conda.sh", "~/none/bin/activate"]
)
def test_an_environment_that_is_not_on_the_hosts_is_no_missing_data(tmp_path: Path, path: str, shell: str) -> None:
    found = first_of(f"set -e\n. {path}\npython3 train.py\n", tmp_path, shell=shell)
    assert (found.code, found.rank, found.hosts) == ("remote-env-differs", 1, ("b",))
    assert path.lstrip("~.") in found.message and "data" not in found.message
    assert [word in found.fix for word in ("Remove", "`python`", "`setup`")] == [True] * 3
    assert missing.path_of(found) is None


@pytest.mark.parametrize(("word", "shell"), [("source", "bash"), (".", "bash"), (".", "dash")])
def test_so_is_one_that_the_script_activates_by_its_name(tmp_path: Path, word: str, shell: str) -> None:
    found = first_of(f"set -e\nPATH=/none\n{word} activate pytorch\n", tmp_path, shell=shell)
    assert found.code == "remote-env-differs" and "Remove" in found.fix


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("conda activate x", ["conda", "Remove", "`python`"]),
        ("micromamba activate x", ["micromamba", "Remove", "`python`"]),
        ("accelerate launch train.py", ["accelerate", "ddp-orch exec --setup -- pip install accelerate`"]),
        ("exec wandb login", ["wandb", "ddp-orch exec --setup -- pip install wandb`"]),
        ("huggingface-cli download x", ["huggingface-cli", "pip install huggingface_hub`"]),
        ("torchrun train.py", ["torchrun", "python3 -m torch.distributed.run"]),
        ("python train.py", ["python", "python3", "`python`"]),
        ("sudo apt-get install x", ["sudo", "Remove", "root"]),
        ("no-such-program x", ["no-such-program", "Install", "`setup`"]),
        ("exec no-such-program x", ["no-such-program", "Install", "`setup`"]),
        ("/usr/bin/env no-such-program x", ["no-such-program", "Install", "`setup`"]),
        ("/usr/bin/timeout 9 accelerate launch", ["accelerate", "pip install accelerate`"]),
        ("/usr/bin/nohup wandb sync", ["wandb", "pip install wandb`"]),
    ],
)
def test_what_to_do_about_a_missing_program_depends_on_the_program(
    tmp_path: Path, command: str, words: list[str], shell: str
) -> None:
    found = first_of(f"set -e\nPATH=/none\n{command}\n", tmp_path, shell=shell)
    name, *advice = words
    assert found.code == "remote-env-differs" and f" {name}, " in found.message and "SSH" not in found.message
    assert [word for word in advice if word not in found.fix] == []
    assert ("pip install" in found.fix) == any("pip install" in word for word in advice)


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("name", ["python", "wandb", "torchrun"])
def test_a_program_of_an_environment_that_is_not_there_is_no_data(tmp_path: Path, name: str, shell: str) -> None:
    found = first_of(f"set -e\n/none/venv/bin/{name} x\n", tmp_path, shell=shell)
    assert found.code == "remote-env-differs" and f"/none/venv/bin/{name}" in found.message
    assert f"`{name}`" in found.fix and "SSH" not in found.message


def test_the_word_source_is_only_known_to_bash(tmp_path: Path) -> None:
    found = first_of("set -e\nsource env.sh\n", tmp_path, shell="dash")
    assert found.code == "remote-env-differs" and "`bash`" in found.fix and "Install" not in found.fix


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("use", ["$NAME", "${NAME:?}"])
@pytest.mark.parametrize(
    ("name", "first", "never"),
    [
        ("NONE_API_KEY", "run.secrets: [NONE_API_KEY]", "PATH"),
        ("NONE_DATA_DIR", "-e NONE_DATA_DIR", "secrets: ["),
        ("SKYPILOT_NODE_RANK", "run.launcher=skypilot", "-e SKY"),
        ("DSTACK_NODE_RANK", "run.launcher=dstack", "-e DSTACK"),
        ("SLURM_PROCID", "run.launcher=srun", "-e SLURM"),
        ("LOCAL_RANK", "torchrun", "-e LOCAL_RANK"),
    ],
)
def test_a_variable_that_the_script_needs_is_named(
    tmp_path: Path, use: str, name: str, first: str, never: str, shell: str
) -> None:
    found = first_of(f"set -eu\nunset {name}\necho {use.replace('NAME', name)}\n", tmp_path, shell=shell)
    assert found.code == "remote-env-differs" and name in found.message and "SSH" not in found.message
    assert first in found.fix and never not in found.fix


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_an_argument_that_the_script_needs_is_no_variable(tmp_path: Path, shell: str) -> None:
    found = first_of("set -eu\necho $1\n", tmp_path, shell=shell)
    assert found.code == "script-bad-argument" and "argument 1" in found.message and "-e " not in found.fix


# --- several hosts


def test_of_hosts_that_fail_alike_the_one_that_the_record_names_is_blamed(tmp_path: Path) -> None:
    for script in ("exit 1\n", "set -e\nls /data/none\n", "set -e\ncat none-$RANDOM\n"):
        lines = [line for rank in (0, 1) for line in output_of(script, tmp_path, rank)[0]]
        for first in (0, 1):
            found = judge(lines, failure(first, 1), failure(1 - first, 1, at=100.1)).findings[0]
            assert (found.rank, found.hosts[0]) == (first, HOSTS[first]), script


def test_an_argument_of_old_launchers_that_all_ranks_lack_is_one_cause_with_a_fix_that_helps() -> None:
    text = "train.py: error: the following arguments are required: --local_rank"
    lines = [Line(99.9, host, rank, "stderr", 1, text) for rank, host in enumerate(HOSTS)]
    found = judge(lines, failure(1, 2)).findings
    assert [each.code for each in found] == ["local-rank-argument"] and "default=int" in found[0].fix
