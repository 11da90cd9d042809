"""Calls of the script itself that fail: a variable that is not set, a port in use, a missing command. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ...inventory import launcher_variables
from ...output.mask import names_credential
from ..scene import Scene
from ..suspects import Suspect, Suspects, map_code
from ..tracebacks import INSTALLED, LoggedException

FROM_ENVIRON = re.compile(r'File "(?:<frozen os>|[^"]*/os\.py)", line \d+, in __getitem__$')
VARIABLE = re.compile(r"['\"](?P<name>[A-Za-z_]\w*)['\"]$")
OF_RENDEZVOUS = re.compile(r"\btorch/distributed/|\bTCPStore\b|\binit_process_group\b|\bDistNetworkError\b")
NOT_FOUND = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<name>[^'/]+)'$")
STARTS = re.compile(r'subprocess\.py", line \d+, in _execute_child$')
NOT_SET = "which is not set for the ranks."
OWN_PORT = "The script itself opens a port that is already in use on this host."
EACH_ITS_OWN = (
    "All ranks of a host open the same port: add int(os.environ['LOCAL_RANK']) to its number, or open it only where "
    "LOCAL_RANK is 0."
)
NEEDS_LOCAL_RANK = "The script requires --local_rank, which only the old torch.distributed.launch passes."
GIVE_LOCAL_RANK = (
    'Give it a default: default=int(os.environ["LOCAL_RANK"]). Or start it with `-- python -m torch.distributed.launch '
    "SCRIPT`, which ddp-orch takes as a request to pass it."
)
STOP_THE_OTHER = "Stop the process that uses it (ss -ltnp 'sport = :PORT'), or use another port in the script."


def find_unset_variable(suspects: Suspects, scene: Scene) -> Suspects:
    """A variable that the script takes from os.environ and that is not set.

    It changes only words; after the rules that change the code of such a suspect.
    """

    def explain(suspect: Suspect) -> Suspect:
        name = _unset_variable(suspect)
        return suspect if name is None else explain_variable(suspect, name)

    def explain_launcher(suspect: Suspect) -> Suspect:
        name = _unset_variable(suspect)
        return suspect if name is None or not launcher_variables.launcher_of(name) else explain_variable(suspect, name)

    suspects = map_code(suspects, "script-exception", explain)
    return map_code(suspects, "missing-rdzv-env", explain_launcher)


def explain_variable(suspect: Suspect, name: str) -> Suspect:
    """How to set a variable that is not set for the ranks."""
    take = f"`-e {name}` takes the value that it has here"
    if launcher := launcher_variables.launcher_of(name):  # a value from here would be that of one rank
        fix = f"The launcher {launcher} sets it: {launcher_variables.explain(launcher)}."
    elif names_credential(name):
        fix = (
            f"Set it here, and list it in the inventory: `run.secrets: [{name}]` sends its value and hides it in the "
            f"output. If it is no secret, {take}, and `run.env` sets it for each start."
        )
    else:
        fix = (
            f"Set it: {take}; `run.env`, or `env` of a host, sets it for each start. If it is a secret, list {name} in "
            "`run.secrets`."
        )
    return replace(suspect, meaning=f"The script needs the variable {name}, {NOT_SET}", fix=fix)


def _unset_variable(suspect: Suspect) -> str | None:
    exception = suspect.exception
    if exception is None or exception.kind != "KeyError" or not FROM_ENVIRON.match((exception.places or ("",))[-1]):
        return None
    match = VARIABLE.match(exception.text)
    return None if match is None else match["name"]


def find_own_port(suspects: Suspects, scene: Scene) -> Suspects:
    """A port that the script opens, such as that of a server for metrics: it is none of the rendezvous.

    It changes only words; after `discount_overcome_trouble`, which asks for the code alone.
    """

    def explain(suspect: Suspect) -> Suspect:
        exception = suspect.exception
        if exception is None or exception.agent or not _is_of_script(exception):
            return suspect
        ranks = [rank for rank, host in scene.ranks.items() if host is not None and host == suspect.host]
        return replace(suspect, meaning=OWN_PORT, fix=EACH_ITS_OWN if len(ranks) > 1 else STOP_THE_OTHER)

    return map_code(suspects, "port-in-use", explain)


def explain_required_local_rank(suspects: Suspects, scene: Scene) -> Suspects:
    """A script of the time of torch.distributed.launch that needs `--local_rank`. It changes only words."""

    def explain(suspect: Suspect) -> Suspect:
        is_required = "are required" in suspect.line.text
        return replace(suspect, meaning=NEEDS_LOCAL_RANK, fix=GIVE_LOCAL_RANK) if is_required else suspect

    return map_code(suspects, "local-rank-argument", explain)


def find_missing_command(suspects: Suspects, scene: Scene) -> Suspects:
    """A program that the script starts and that is not installed: no data are missing.

    Before the rules of missing files, which would look for who wrote it.
    """

    def explain(suspect: Suspect) -> Suspect:
        match = NOT_FOUND.search(suspect.line.text)
        exception = suspect.exception
        if match is None or exception is None:
            return suspect
        if not any(map(STARTS.search, exception.places)):
            return suspect
        name = match["name"]
        meaning = f"The script starts the program {name}, which is not on the PATH of the ranks on this host."
        fix = f"Install {name} there, or set its folder: `env: {{PATH: ...}}` or `setup` of the host."
        return replace(suspect, code="script-exception", meaning=meaning, fix=fix)

    for code in ("dataset-missing", "file-missing-on-host"):
        suspects = map_code(suspects, code, explain)
    return suspects


def _is_of_script(exception: LoggedException) -> bool:
    own = any(INSTALLED.search(place) is None for place in exception.places)
    return own and not any(map(OF_RENDEZVOUS.search, (*exception.frames, *exception.lines)))
