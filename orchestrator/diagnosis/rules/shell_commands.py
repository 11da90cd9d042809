"""Commands of a shell script that fail and end it: missing files, programs, variables, and permissions. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ..exits import Exit
from ..scene import NO_RECORD, Scene
from ..shell_errors import (
    CD,
    DENIED,
    find_final_errors,
    missing_environment,
    missing_path,
    missing_program,
    unmade_path,
    unset_variable,
)
from ..suspects import ENDING, SPECIFIC, Suspect, Suspects, map_code
from ..transcript import LogLine
from .own_calls import explain_variable

LEVEL = 62
LEVEL_OF_SCRIPT = 79  # of a script that Python cannot open: knowledge/remote-workdir-missing.yaml
NO_SCRIPT = "can't open file"
MEANING_OF_CD = "The script changes to a folder that does not exist on this host: {path}."
IN_CODE = "the run starts in the folder of the code"
REMOVE_CD = f"Remove that `cd`: {IN_CODE}, which takes the place of ~/sky_workdir."
CORRECT_CD = f"Correct the path, or remove that `cd`: {IN_CODE}."
WRITE_ELSEWHERE = "or write to $DDP_ORCH_OUTPUT_DIR, which exists. ddp-orch sends no empty folders with the code."
CORRECT_SCRIPT = f"Correct the path in the command: {IN_CODE}, and relative paths start there."
ADD_ARGUMENT = "Give it after the script: `-- bash SCRIPT ARGUMENT`. `${1:-VALUE}` in the script is a default."
OF_RANKS = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
FOR_EACH_RANK = (
    "Use NODE_RANK and NPROC_PER_NODE, as the script is started once per host, or read {name} in the program that "
    "torchrun starts: torchrun sets it for each rank."
)
USE_PYTHON = (
    "the venv or conda environment of `python` in the inventory comes first on the PATH of the script. Set `python` to "
    "that of the environment that you need, or activate it in `setup`."
)
WITHOUT_FOLDER = f"Write `{{name}}` without its folder: {USE_PYTHON}"
CALL_PYTHON3 = (
    "Call `python3`, or set `python` of the hosts to that of a venv or conda environment, which then comes first on "
    "the PATH of the script."
)
PYTHON = re.compile(r"python[\d.]*")
PACKAGES = {
    **dict.fromkeys(
        ("accelerate", "deepspeed", "gdown", "litgpt", "mlflow", "ray", "tensorboard", "uv", "vllm", "wandb"), ""
    ),
    "hf": "huggingface_hub",
    "huggingface-cli": "huggingface_hub",
    "llamafactory-cli": "llamafactory",
    "transformers-cli": "transformers",
    "tune": "torchtune",
}
"""Python packages by the programs that they install; empty: it has the same name."""
ADVICE = {
    "torchrun": "Call `python3 -m torch.distributed.run`, which is the same, or add the folder of torchrun to the PATH "
    "in `setup`.",
    "sudo": "Remove `sudo`: runs need no root. What needs it, such as `apt-get install`, is to be done once, before.",
    "source": "Start the script with `bash`, or write `.`: other shells have no `source`.",
}
INSTALL = (
    "Install {name} on the hosts. If it is there, add its folder to the PATH in `setup`: ranks start without ~/.bashrc "
    "and modules."
)


def explain_cd(suspects: Suspects, scene: Scene) -> Suspects:
    """A `cd` of the user's own script that fails in a run of ddp-orch, which itself needs none.

    Without `set -e`, the script continues after it. Before `find_failed_command`, which asks what is explained.
    """

    without_script = {suspect.rank for suspect in suspects if NO_SCRIPT in suspect.line.text}

    def explain(suspect: Suspect) -> Suspect:
        match = CD.search(suspect.line.text)
        if match is None or suspect.line.rank is None or suspect.line.agent:
            return suspect
        fix = REMOVE_CD if "sky_workdir" in match["path"] else CORRECT_CD
        suspect = replace(suspect, code="script-exception", meaning=MEANING_OF_CD.format(path=match["path"]), fix=fix)
        if suspect.rank in without_script:
            return replace(suspect, level=LEVEL_OF_SCRIPT + 1)
        if any(suspect.line in find_final_errors(exit_, scene) for exit_ in _silent_exits(scene)):
            return suspect
        return replace(suspect, level=ENDING - 1, hint=True)

    return suspects if scene.record == NO_RECORD else map_code(suspects, "remote-workdir-missing", explain)


def explain_missing_script(suspects: Suspects, scene: Scene) -> Suspects:
    """A script that Python cannot open, although the code was sent. It changes only words."""

    def explain(suspect: Suspect) -> Suspect:
        return replace(suspect, fix=CORRECT_SCRIPT) if NO_SCRIPT in suspect.line.text else suspect

    return map_code(suspects, "remote-workdir-missing", explain) if scene.record.same_code else suspects


def explain_unset_variable(suspects: Suspects, scene: Scene) -> Suspects:
    """A variable or an argument that a shell script needs. PATH and SSH have nothing to do with it."""

    def explain(suspect: Suspect) -> Suspect:
        name = unset_variable(suspect.line.text)
        if name is None:
            return suspect
        if name.isdecimal():
            meaning = f"The script needs argument {name}, which its command does not have."
            return replace(suspect, code="script-bad-argument", meaning=meaning, fix=ADD_ARGUMENT)
        suspect = explain_variable(suspect, name)
        return replace(suspect, fix=FOR_EACH_RANK.format(name=name)) if name in OF_RANKS else suspect

    return map_code(suspects, "remote-env-differs", explain)


def explain_missing_program(suspects: Suspects, scene: Scene) -> Suspects:
    """A program that a shell script calls, in a run of ddp-orch.

    It changes only words. After `find_failed_command`, which finds some of them.
    """

    def explain(suspect: Suspect) -> Suspect:
        if suspect.line.rank is None or suspect.line.agent:
            return suspect
        if path := _missing_in_environment(suspect.line.text):
            meaning = f"The script calls {path}, which does not exist on this host."
            return replace(suspect, meaning=meaning, fix=WITHOUT_FOLDER.format(name=path.rpartition("/")[2]))
        name = missing_program(suspect.line.text)
        if name is None:
            return suspect
        meaning = f"The script calls {name}, which is not on the PATH of the ranks on this host."
        return replace(suspect, meaning=meaning, fix=_advise_program(name))

    return suspects if scene.record == NO_RECORD else map_code(suspects, "remote-env-differs", explain)


def _missing_in_environment(text: str) -> str | None:
    """The path of a program that a venv or a conda environment would have."""
    path = missing_path(text) or ""
    folder, _, name = path.rpartition("/bin/")
    return path if folder and (name in PACKAGES or name == "torchrun" or PYTHON.fullmatch(name)) else None


def _advise_program(name: str) -> str:
    if name in ADVICE:
        return ADVICE[name]
    if name in ("conda", "mamba", "micromamba"):
        return f"Remove the lines that activate an environment: {USE_PYTHON}"
    if name in PACKAGES:
        package = PACKAGES[name] or name
        return f"Install it for the `python` of the hosts: `ddp-orch exec --setup -- pip install {package}`."
    if PYTHON.fullmatch(name):
        return CALL_PYTHON3
    return INSTALL.format(name=name)


def find_failed_command(suspects: Suspects, scene: Scene) -> Suspects:
    """The last words of a rank that ended with an exit code and printed no other error: those of a shell's command.

    After the rules that find other errors, and before those that ask which file is missing where.
    """
    added: list[Suspect] = []
    for exit_ in _silent_exits(scene):
        explained = any(each.rank == exit_.rank and each.level >= SPECIFIC and not each.hint for each in suspects)
        raised = any(
            exception.line.rank in (exit_.rank, None) and not exception.agent and not scene.continues_after(exception)
            for exception in scene.exceptions
        )
        if not explained and not raised:
            found = (_suspect_of(line, exit_, scene) for line in find_final_errors(exit_, scene))
            first = next((suspect for suspect in found if suspect is not None), None)
            is_recorded = exit_.rank == scene.record.first_rank  # of the hosts with such an error, it is named
            added += [replace(first, level=LEVEL + is_recorded)] if first is not None else []
    return (*suspects, *added)


def _silent_exits(scene: Scene) -> list[Exit]:
    return [
        exit_
        for exit_ in scene.exits
        if exit_.root and exit_.code > 0 and exit_.signal is None and exit_.rank is not None and not exit_.agent
    ]


def _suspect_of(line: LogLine, exit_: Exit, scene: Scene) -> Suspect | None:
    host = exit_.host or scene.host_of(line)
    if path := unmade_path(line.text):
        folder = path.rstrip("/").rpartition("/")[0] or path
        meaning = f"The folder to which the script writes does not exist on this host: {folder}."
        fix = f"Call `mkdir -p {folder}` before that, {WRITE_ELSEWHERE}"
        return Suspect("script-exception", LEVEL, line, exit_.rank, host, "medium", meaning=meaning, fix=fix)
    if missing_program(line.text) or _missing_in_environment(line.text):
        return Suspect("remote-env-differs", LEVEL, line, exit_.rank, host)
    if path := missing_environment(line.text):
        meaning = f"The script activates an environment that does not exist on this host: {path}."
        fix = f"Remove that line: {USE_PYTHON}"
        return Suspect("remote-env-differs", LEVEL, line, exit_.rank, host, meaning=meaning, fix=fix)
    if missing_path(line.text):
        others = [other for other in scene.ranks.values() if other not in (None, host)]
        ended = {each.host for each in _silent_exits(scene)}
        code = "file-missing-on-host" if others and not ended & set(others) else "dataset-missing"
        return Suspect(code, LEVEL, line, exit_.rank, host, "medium")
    if DENIED.search(line.text):
        return Suspect("file-permission-denied", LEVEL, line, exit_.rank, host, "medium")
    return None
