"""What this host has for containers: an engine that works, and the image."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..host import containers, engines, processes
from ..host.run_command import output_of
from ..host.small_files import text_of

WINDOW = 20.0  # s for an engine to answer
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
CDI_KIND = re.compile(r"""(?:^|[{,\s])["']?kind["']?\s*:\s*["']?nvidia\.com/gpu\b""")
SAMPLE = 1 << 20  # bytes at each end of an image that is a file


class GpuWay(NamedTuple):
    """Whether an engine can give GPUs to a container, and whether as CDI devices."""

    works: bool
    cdi: bool = False


def look(container: Dict[str, Any], question: str) -> Dict[str, Any]:
    """`container`: image, and engines in order of preference. `question`: a file in a folder of its own.

    In the answer, `code` and `error` are what is missing, or None.
    """
    wanted = [engine for engine in container["engines"] if engine in engines.ENGINES]
    installed = [engine for engine in wanted if shutil.which(engine) is not None]
    problems = {engine: _why_unusable(engine, question) for engine in installed}
    usable = [_with_image(engine, container["image"], question) for engine in installed if problems[engine] is None]
    if usable:  # the first that has the image, or else the first
        return next((found for found in usable if found["image"]), usable[0])
    code, error = "container-engine-missing", "%s not found" % " and ".join(wanted)
    if installed:
        code, error = "container-engine-unusable", "%s: %s" % (installed[0], problems[installed[0]])
    return {"engine": None, "image": [], "gpus": False, "code": code, "error": error}


def _runtime(question: str) -> str:
    return os.path.join(os.path.dirname(question), "engine")


def _with_environment(engine: str, question: str, argv: List[str]) -> List[str]:
    variables = engines.client_environment(engine, {}, _runtime(question))
    return ["/usr/bin/env", *("%s=%s" % item for item in variables.items()), *argv]


def _why_unusable(engine: str, question: str) -> Optional[str]:
    status, error = _run(_with_environment(engine, question, engines.version_argv(engine)))
    return None if status == 0 else error


def _with_image(engine: str, image: str, question: str) -> Dict[str, Any]:
    row = engines.ENGINES[engine]
    ids = _ids_of(row, image, question)
    gpus = GPU_CHECKS[row.gpus]()
    code, error = None, None
    if not ids:
        code = "container-image-missing"
        error = "%s does not exist" % image if image[0] == "/" else "%s does not have the image %s" % (engine, image)
    found = {"engine": engine, "image": ids, "gpus": gpus.works, "cdi": gpus.cdi, "code": code, "error": error}
    return dict(found, needs_linger=row.needs_linger and _needs_linger())


def _ids_of(row: engines.Engine, image: str, question: str) -> List[str]:
    """What is equal for equal images; empty: the host does not have it."""
    if image[0] == "/":
        return _ids_of_file(image)
    if row.records:
        return output_of(engines.image_argv(row.name, image), WINDOW).split()
    names = output_of(_with_environment(row.name, question, [row.name, "list"]), WINDOW).splitlines()
    return [image] if image in names else []


def _ids_of_file(path: str) -> List[str]:
    """A digest of the size and both ends: their headers and tables differ between builds. All of it takes too long."""
    try:
        if os.path.isdir(path):
            return [path]
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256(b"%d " % size)
            for offset in (0, max(0, size - SAMPLE)):
                file.seek(offset)
                digest.update(file.read(SAMPLE))
    except OSError:
        return []
    return ["sha256:" + digest.hexdigest()]


def _needs_linger() -> bool:
    """Whether the end of the last login removes podman's files in /run/user."""
    user = os.geteuid()
    lingers = os.path.exists("/var/lib/systemd/linger/%s" % processes.user_name(user))
    return user != 0 and os.path.isdir("/run/systemd/system") and not lingers


def _gpus_of_docker() -> GpuWay:
    """By `--gpus` where NVIDIA's hook is, which it needs. Else by CDI, in Docker 25 or newer.

    Without both, a runtime of NVIDIA shows that the hook is where only the daemon looks.
    """
    try:
        info = json.loads(output_of(["docker", "info", "--format={{json .}}"], WINDOW))
    except ValueError:
        info = {}
    if shutil.which("nvidia-container-runtime-hook"):
        return GpuWay(True)
    if _has_cdi(info.get("CDISpecDirs") or []):
        return GpuWay(True, cdi=True)
    return GpuWay("nvidia" in (info.get("Runtimes") or {}))


def _has_cdi(folders: List[str]) -> bool:
    """Whether NVIDIA's GPUs are in a file of the Container Device Interface."""
    for folder in folders:
        names = os.listdir(folder) if os.path.isdir(folder) else []
        files = [name for name in names if name.endswith((".yaml", ".json"))]
        if any(CDI_KIND.search(text_of(os.path.join(folder, name))) for name in files):
            return True
    return False


def _gpus_of_podman() -> GpuWay:
    works = _has_cdi(list(CDI_FOLDERS))
    return GpuWay(works, works)


GPU_CHECKS: Dict[str, Callable[[], GpuWay]] = {
    "cdi": _gpus_of_podman,
    "docker": _gpus_of_docker,
    "nvidia-container-cli": lambda: GpuWay(shutil.which("nvidia-container-cli") is not None),
    "libraries": lambda: GpuWay(True),  # those of the host's driver: it looks for them when a container starts
}


def python_argv(arguments: Dict[str, Any], question: str, argv: List[str]) -> Tuple[List[str], Dict[str, str]]:
    """The command line that asks the python of the image, and its variables. `arguments`: of the probe.

    `question`: a file to mount, in a folder of its own.
    """
    container, workdir, variables = arguments["container"], arguments["workdir"], arguments["env"]
    folders = [question + ":ro", *([workdir] if workdir and os.path.isdir(workdir) else [])]
    words = ["%s=%s" % item for item in variables.items()]
    inside = engines.Inside(folder="", cwd="/", mounts=folders, variables=words, gpus=[])
    hidden = variables if engines.ENGINES[container["engine"]].variable_prefix else {}
    environment = engines.client_environment(container["engine"], hidden, _runtime(question))
    return engines.run_argv(container, containers.here(), inside, argv), environment


def explain(container: Dict[str, Any], error: str) -> Tuple[str, str]:
    """(reason, code) of a container that could not be started, or in which python failed. `error`: its last line."""
    user, engine = processes.user_name(os.geteuid()), container["engine"]
    needs_ids = engines.ENGINES[engine].needs_ids and os.geteuid() != 0
    if needs_ids and not all(_has_ids(text_of(path), user) for path in ("/etc/subuid", "/etc/subgid")):
        return "%s has no subordinate user ids for %s: %s" % (engine, user, error), "container-ids-missing"
    return "in the image %s: %s" % (container["image"], error), "container-engine-unusable"


def _has_ids(text: str, user: str) -> bool:
    return any(line.split(":")[0] in (user, str(os.geteuid())) for line in text.splitlines())


def _run(argv: List[str]) -> Tuple[int, str]:
    """(exit status, last line of stderr)."""
    try:
        answer = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=WINDOW,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    lines = answer.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    return answer.returncode, lines[-1] if lines else "no output"
