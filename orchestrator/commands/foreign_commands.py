"""Recognise the commands of similar programs, and translate their words into a command of ddp-orch."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..inventory import document, launcher_variables
from ..inventory.run_ids import RUN_NAME
from ..inventory.sources import reference

SHELLS = {".sh": "bash", ".bash": "bash", ".zsh": "zsh"}
_SHELL = re.compile(r"(.*/)?(ba|z|da|k)?sh")

_RENTED = "(end the rental of hosts with your provider)"
_PRICES = "ddp-orch ps --all (how long each run took, and where); your provider knows the prices"
# commands of similar programs, and what to use here; {NAME} stands for the words, translated by _TRANSLATIONS
ELSEWHERE = {
    "apply": "{up}",
    "autostop": "`notify` in the inventory, which tells you when a run has ended " + _RENTED,
    "cancel": "{kill}",
    "cordon": "ddp-orch drain RUN HOST (takes a host out of a run)",
    "cost": _PRICES,
    "cost-report": _PRICES,
    "cp": "ddp-orch fetch RUN (brings outputs here); ddp-orch up sends the code by itself",
    "dashboard": "{top}",
    "delete": "ddp-orch kill RUN (stops a run); ddp-orch prune (removes old runs)",
    "down": "{kill} " + _RENTED,
    "download": "{fetch}",
    "get": "ddp-orch ps; ddp-orch config (the hosts of the inventory)",
    "gpustat": "{gpus}",
    "hosts": "ddp-orch config (the hosts of the inventory); ddp-orch check (their state)",
    "inspect": "{describe}",
    "jobs": "ddp-orch ps",
    "jobs cancel": "{kill}",
    "jobs launch": "{up}; run.max_restarts starts the run again after a failure",
    "jobs logs": "{logs}",
    "jobs queue": "{ps}",
    "launch": "{up}",
    "list": "{ps}",
    "ls": "{ps}",
    "nvidia-smi": "ddp-orch gpus; ddp-orch exec -- nvidia-smi{words}",
    "queue": "{queue}; ddp-orch up --queue starts when it is the turn of the run",
    "rm": "ddp-orch prune --run RUN (deletes the record of a finished run); ddp-orch kill RUN (stops one)",
    "run": "{run}",
    "sbatch": "{submit}",
    "scancel": "{kill}",
    "serve": "ddp-orch up -- COMMAND (starts a server, such as `vllm serve MODEL`); ddp-orch wait --ready RUN",
    "show-gpus": "{gpus}",
    "squeue": "ddp-orch ps",
    "srun": "ddp-orch up; for a command on every host: ddp-orch exec -- CMD",
    "ssh": "ddp-orch shell RUN HOST (in the environment of a run); for a command on every host: ddp-orch exec -- CMD",
    "start": "{start}",
    "stats": "{top}",
    "status": "{ps}",
    "stop": "{kill}",
    "storage": "ddp-orch fetch RUN (brings outputs here); run.output names a disk that the hosts share",
    "submit": "{submit}",
    "sync": "ddp-orch up -- SCRIPT (sends the code by itself)",
    "tail": "{tail}",
    "train": "{run}",
    "watch": "{top}",
}
_OF_HOST = ("ssh", "srun", "nvidia-smi")  # what follows them is a command of a host

_GENERIC = "SCRIPT ARGS..."
# options of `sky launch` and `dstack apply`, and those of `up` in their place; None: `up` has and needs none
_WITH_VALUE: Mapping[str, str | None] = {
    **dict.fromkeys(("-n", "--name"), "--name"),
    **dict.fromkeys(("-e", "--env"), "-e"),
    "--env-file": "--env-file",
    "--num-nodes": "--hosts",
    **dict.fromkeys(("-c", "--cluster", "--gpus", "--infra", "--cloud", "--region", "--zone", "--image-id")),
    **dict.fromkeys(("-t", "--instance-type", "--cpus", "--memory", "--disk-size", "--disk-tier", "--ports")),
    **dict.fromkeys(("-i", "--idle-minutes-to-autostop", "--workdir", "--secret", "--secret-file", "--pool")),
}
_FLAGS: Mapping[str, str | None] = {
    **dict.fromkeys(("-d", "--detach", "--detach-run"), "-d"),
    "--dryrun": "--dry-run",
    **dict.fromkeys(("-y", "--yes", "--down", "--fast", "--no-setup", "--use-spot", "--no-use-spot", "--async")),
    **dict.fromkeys(("-r", "--retry-until-up", "-s", "--detach-setup")),
}
# those of commands about a job
_ALL = ("-a", "--all", "--all-users")
_IGNORED = ("-y", "--yes", "-f", "--follow", "--no-follow", "-r", "--refresh", "-s", "--skip-finished", "-v", "--async")


@dataclass(frozen=True)
class _Job:
    """The words of a command about jobs."""

    names: tuple[str, ...]
    all: bool
    inventory: str | None
    is_understood: bool


def elsewhere(argv: Sequence[str]) -> str | None:
    """A message about a command of a similar program, or None."""
    count = 2 if " ".join(argv[:2]) in ELSEWHERE else 1
    command = " ".join(argv[:count])
    if command not in ELSEWHERE:
        return None
    if argv[0] not in _OF_HOST and (task := foreign_task(argv[count:])) is not None:
        return f"unknown command '{command}'. {task}"
    missing = next((word for word in argv[count:] if is_yaml(word) and not is_file(word)), None)
    note = f" ({missing} does not exist)" if missing and argv[0] not in _OF_HOST else ""
    return f"unknown command '{command}'; you may want: {_translate(ELSEWHERE[command], argv[count:])}{note}"


def of_other_program(words: Sequence[str]) -> str | None:
    """A message about a command line of SkyPilot or dstack in the place of a script, or None."""
    if len(words) < 2 or words[0] not in ("sky", "dstack") or Path(words[0]).is_file():
        return None
    count = 2 if " ".join(words[1:3]) in ELSEWHERE else 1
    command = " ".join(words[1 : 1 + count])
    if command not in ELSEWHERE and command not in ("exec", "logs"):
        return None
    if (task := foreign_task(words[2:])) is not None:
        return f"{words[0]} {command}: {task}"
    instead = ELSEWHERE.get(command, f"ddp-orch {command} --help")
    return (
        f"`{words[0]} {command}` is a command for your machine, and `up` would start it on each host; you may want: "
        f"{_translate(instead, words[1 + count :])}"
    )


def foreign_task(words: Sequence[str]) -> str | None:
    """What to do with the file among the words that is a task of another program; None: there is none."""
    for path in (Path(word) for word in words if is_yaml(word)):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if what := document.describe_task(path.read_text(encoding="utf-8"), str(path)):
                return f"{path}: {what}"
    return None


def is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # such as a command for `bash -c`, which is too long for a name
        return False


def is_yaml(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def is_inventory(word: str) -> bool:
    return is_yaml(word) or reference.is_source(word)


def _translate(text: str, words: Sequence[str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: _TRANSLATIONS[match[1]](words), text)


def _launch(words: Sequence[str]) -> str:
    """Of `sky launch`, `dstack apply` and the like."""
    rest, own = list(words), list[str]()
    inventory: str | None = None
    while rest and rest[0] != "--":
        name, equals, value = rest[0].partition("=")
        if name in ("-f", "--file") and rest[1:]:
            del rest[0]
        elif not name.startswith("-"):
            if inventory is not None or not is_inventory(name):
                break
            inventory = rest.pop(0)
        elif name in _FLAGS and not equals:
            flag = _FLAGS[name]
            own += [] if flag is None else [flag]
            del rest[0]
        elif name in _WITH_VALUE and (equals or rest[1:]):
            value = value if equals else rest[1]
            del rest[: 1 if equals else 2]
            option = _WITH_VALUE[name]
            if not _is_value(option, value):
                return _up([], inventory, [])
            own += [] if option is None else [option, f"any {value}" if option == "--hosts" else value]
        else:
            return _up([], inventory, [])
    is_marked = rest[:1] == ["--"]
    script = rest[1:] if is_marked else rest
    # without `--`, an option after the script may be one of either
    is_known = not is_marked and {word.partition("=")[0] for word in script} & {"--", *_WITH_VALUE, *_FLAGS}
    return _up(own, inventory, [] if is_known else script)


def _is_value(option: str | None, value: str) -> bool:
    match option:
        case "--name":
            return RUN_NAME.fullmatch(value) is not None
        case "--hosts":
            return re.fullmatch(r"[1-9][0-9]{0,3}", value) is not None
        case "-e":
            return re.match(r"[A-Za-z_]\w*(=|$)", value) is not None
    return True


def _run(words: Sequence[str], own: Sequence[str] = ()) -> str:
    """Of a program whose options are not known here."""
    inventory = words[0] if words and is_inventory(words[0]) else None
    rest = list(words[1:] if inventory is not None else words)
    if rest[:1] == ["--"]:
        return _up(own, inventory, rest[1:])
    return _up(own, inventory, [] if "--" in rest or (rest and rest[0].startswith("-")) else rest)


def _up(own: Sequence[str], inventory: str | None, script: Sequence[str]) -> str:
    """`script`: empty if it is not known."""
    before = [*([inventory] if inventory is not None else ()), *own]
    if not script or re.search(r"\s", script[0]):  # a line for a shell
        return f"{_line(['up', *before])}{'' if inventory is not None else f' -- {_GENERIC}'}"
    if shell := SHELLS.get(Path(script[0]).suffix):
        script = [shell, *script]
    if _SHELL.fullmatch(script[0]):
        before += ["--set", f"run.launcher={_launcher(script)}"]
    return _line(["up", *before, "--", *script])


def _launcher(script: Sequence[str]) -> str:
    file = next((Path(word) for word in script[1:] if is_file(word)), None)
    if file is None:
        return launcher_variables.launcher_of_script(" ".join(script).encode())
    return launcher_variables.read_launcher(file)


def _start(words: Sequence[str]) -> str:
    """`start` is for something that has run before, or for a script."""
    job = _read_job(words)
    if job.is_understood and len(job.names) == 1 and not job.inventory:
        name = job.names[0]
        if RUN_NAME.fullmatch(name) and Path(name).suffix not in (*SHELLS, ".py") and not is_file(name):
            return _line(["restart", name])
    return _launch(words)


def _read_job(words: Sequence[str]) -> _Job:
    names, is_understood, rest = [], True, list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-n", "--name") and rest:
            names.append(rest.pop(0))
        elif not word.startswith("-"):
            names.append(word)
        else:
            is_understood = is_understood and word in (*_ALL, *_IGNORED)
    inventories = [name for name in names if is_inventory(name)]
    others = tuple(name for name in names if not is_inventory(name))
    is_understood = is_understood and len(inventories) < 2 and all(map(RUN_NAME.fullmatch, others))
    every = any(word in _ALL for word in words)
    return _Job(others, every, inventories[0] if inventories else None, is_understood)


def _about_run(*command: str) -> Callable[[Sequence[str]], str]:
    def translate(words: Sequence[str]) -> str:
        job = _read_job(words)
        inventory = ["-i", job.inventory] if job.inventory is not None else []
        if command == ("kill",) and job.all:
            return _line([*command, "--all", *inventory])
        is_number = any(re.fullmatch(r"\d{1,5}", name) for name in job.names)  # of a job there
        if not job.is_understood or len(job.names) > 1 or is_number:
            return _line([*command, "RUN"])
        return _line([*command, *job.names, *inventory])

    return translate


def _list(words: Sequence[str]) -> str:
    job = _read_job(words)
    if job.is_understood and len(job.names) == 1:
        return _about_run("describe")(words)
    return _queue(words)


def _queue(words: Sequence[str]) -> str:
    """Of a cluster, not of a job."""
    job = _read_job(words)
    return _line(["ps", *(["--all"] if job.all else []), *([job.inventory] if job.inventory else [])])


def _gpus(words: Sequence[str]) -> str:
    inventory = _read_job(words).inventory
    return _line(["gpus", *([inventory] if inventory else [])])


def _line(words: Sequence[str]) -> str:
    return shlex.join(["ddp-orch", *words])


_TRANSLATIONS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "up": _launch,
    "run": _run,
    "submit": lambda words: _run(words, ["-d"]),
    "start": _start,
    **{name: _about_run(name) for name in ("kill", "top", "fetch", "describe")},
    "logs": _about_run("logs", "-f"),
    "tail": _about_run("logs", "-f", "--tail", "10"),
    "ps": _list,
    "queue": _queue,
    "gpus": _gpus,
    "words": lambda words: "".join(f" {shlex.quote(word)}" for word in words),
}
