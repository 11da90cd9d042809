"""What this host has for containers: an engine that works, and the image."""

import os
import shutil
import subprocess
from typing import Any, Dict, List, Optional, Tuple

from ..host import containers, engines, processes
from ..host.run_command import output_of
from ..host.small_files import text_of

WINDOW = 20.0  # s for an engine to answer
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")


def look(container: Dict[str, Any]) -> Dict[str, Any]:
    """`container`: engine, image, mounts, options of the inventory. `code` and `error`: what is missing, or None."""
    wanted = engines.ENGINES if container["engine"] == "auto" else (container["engine"],)
    installed = [engine for engine in wanted if shutil.which(engine) is not None]
    problems = {engine: _why_unusable(engine) for engine in installed}
    usable = [_with_image(engine, container) for engine in installed if problems[engine] is None]
    if usable:  # the first that has the image, or else the first
        return next((found for found in usable if found["image"]), usable[0])
    code, error = "container-engine-missing", "%s not found" % " and ".join(wanted)
    if installed:
        code, error = "container-engine-unusable", "%s: %s" % (installed[0], problems[installed[0]])
    return {"engine": None, "image": [], "gpus": False, "code": code, "error": error}


def _why_unusable(engine: str) -> Optional[str]:
    status, error = _run(engines.version_argv(engine))
    return None if status == 0 else error


def _with_image(engine: str, container: Dict[str, Any]) -> Dict[str, Any]:
    image = output_of(engines.image_argv(engine, container["image"]), WINDOW).split()
    error = None if image else "%s does not have the image %s" % (engine, container["image"])
    code = None if image else "container-image-missing"
    found = {"engine": engine, "image": image, "gpus": _gives_gpus(engine), "code": code, "error": error}
    return dict(found, needs_linger=engine == engines.PODMAN and _needs_linger())


def _needs_linger() -> bool:
    """Whether the end of the last login removes podman's files in /run/user."""
    user = os.geteuid()
    lingers = os.path.exists("/var/lib/systemd/linger/%s" % processes.user_name(user))
    return user != 0 and os.path.isdir("/run/systemd/system") and not lingers


def _gives_gpus(engine: str) -> bool:
    """Whether NVIDIA's toolkit has told the engine how to give GPUs to a container."""
    if engine == engines.DOCKER:
        return "nvidia" in output_of([engine, "info", "--format={{json .Runtimes}}"], WINDOW)
    return any("nvidia" in name for folder in CDI_FOLDERS if os.path.isdir(folder) for name in os.listdir(folder))


def python_argv(arguments: Dict[str, Any], question: str, argv: List[str]) -> List[str]:
    """The command line that asks the python of the image. `arguments`: of the probe; `question`: a file to mount."""
    workdir = arguments["workdir"]
    folders = [question + ":ro", *([workdir] if workdir and os.path.isdir(workdir) else [])]
    variables = ["%s=%s" % item for item in arguments["env"].items()]
    inside = engines.Inside(folder="", cwd="/", mounts=folders, variables=variables, gpus=[])
    return engines.run_argv(arguments["container"], containers.here(), inside, argv)


def explain(container: Dict[str, Any], error: str) -> Tuple[str, str]:
    """(reason, code) of a container that could not be started, or in which python failed. `error`: its last line."""
    user = processes.user_name(os.geteuid())
    is_rootless = container["engine"] == engines.PODMAN and os.geteuid() != 0
    if is_rootless and not all(_has_ids(text_of(path), user) for path in ("/etc/subuid", "/etc/subgid")):
        return "podman has no subordinate user ids for %s: %s" % (user, error), "container-ids-missing"
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
