"""Runs in the user's python, inside the host's setup, as `python -c TEXT FILE`: versions, limits, the script. No torch.

Importing torch would cost seconds: its versions are in its files. FILE holds the question as JSON.
"""

import sys

if "" in sys.path:
    sys.path.remove("")  # -c puts the login's folder there, and a json.py in it must not be imported

import importlib.util
import json
import os
import re
import resource
from typing import TYPE_CHECKING, Any, Dict, Optional, Set

if TYPE_CHECKING:
    import ast

PACKAGES = re.compile(r"(nvidia_nccl_cu\d+|nvidia_cudnn_cu\d+|torchvision|numpy)-([^-]+)\.dist-info$")
SETTINGS = re.compile(r"(NCCL_|GLOO_|TORCH_|OMP_|CUDA_|LD_LIBRARY_PATH$|LD_PRELOAD$|PYTHONPATH$|RES_OPTIONS$)")
LIBRARIES = {"net_plugin": re.compile(r"libnccl-net[\w-]*\.so$"), "libfabric": re.compile(r"libfabric\.so\.\d+$")}
FILE_LOCK = re.compile(r"\bFileBaton\(")  # a lock that holds for as long as its file exists
LOADER_CACHE = "/etc/ld.so.cache"  # the paths in it end with a NUL


def torch_versions() -> Dict[str, Optional[str]]:
    """`{torch, cuda, path}`; torch is None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return {"torch": None, "cuda": None, "path": None}
    path = next(iter(spec.submodule_search_locations))
    try:
        with open(os.path.join(path, "version.py"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        text = ""
    versions: Dict[str, Optional[str]] = {"path": path}
    for key, name in (("torch", "__version__"), ("cuda", "cuda")):
        match = re.search(r"^%s\b[^=\n]*= *['\"]([^'\"]+)['\"]" % name, text, re.M)
        versions[key] = match.group(1) if match else None
    return dict(versions, torch=versions["torch"] or "unknown")


def build_locks(torch: Optional[str]) -> Optional[str]:
    """How concurrent builds of torch extensions lock: by a `file`, or since about torch 2.15 by the `kernel` (flock).

    A lock of the kernel ends with the process that holds it; its file stays after every build and blocks no one.
    """
    try:
        with open(os.path.join(torch or "", "utils", "cpp_extension.py"), encoding="utf-8") as file:
            return "file" if FILE_LOCK.search(file.read()) else "kernel"
    except OSError:
        return None


def packages() -> Dict[str, str]:
    """{name: version} of what matters beside torch, from the names of metadata folders, the first found first."""
    versions: Dict[str, str] = {}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            match = PACKAGES.match(name)
            if match:
                versions.setdefault(match.group(1), match.group(2))
    return versions


def limits() -> Dict[str, Optional[int]]:
    """Soft and hard limits; None: unlimited."""
    values: Dict[str, Optional[int]] = {}
    for key, number in (("nofile", 7), ("nproc", 6), ("memlock", 8)):  # numbers of Linux
        soft, hard = resource.getrlimit(number)
        values[key] = None if soft == resource.RLIM_INFINITY else soft
        values[key + "_hard"] = None if hard == resource.RLIM_INFINITY else hard
    return values


def script(request: Optional[Dict[str, Any]], workdir: Optional[str]) -> Optional[Dict[str, Any]]:
    """Whether the script is there and compiles, and which of its top-level imports cannot be found."""
    if request is None:
        return None
    source = request["source"]
    if source is None:
        path = os.path.join(workdir or "", request["path"])
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            return {"path": path, "error": None, "absent": str(error.strerror), "missing": []}
    import ast  # slow, and only needed for a script

    try:
        tree = ast.parse(source, request["path"])
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        text = "%s line %s: %s" % (request["path"], line, getattr(error, "msg", None) or error)
        return {"path": request["path"], "error": text, "absent": None, "missing": []}
    if "sys.path" in (source if isinstance(source, str) else source.decode("utf-8", "replace")):
        return {"path": request["path"], "error": None, "absent": None, "missing": []}  # it looks in places of its own
    local = set(request["local"])
    if request["source"] is None:
        folder = os.path.dirname(os.path.join(workdir or "", request["path"]))
        local |= {name.split(".")[0] for name in os.listdir(folder)}
    missing = sorted(name for name in imports(tree) - local if not findable(name))
    return {"path": request["path"], "error": None, "absent": None, "missing": missing}


def imports(tree: "ast.Module") -> Set[str]:
    """Names of modules that the script imports in any case: not those in a `try`, an `if` or a function."""
    import ast

    modules: Set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules.add(node.module.split(".")[0])
    return modules


def findable(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def libraries(patterns: Dict[str, "re.Pattern[str]"]) -> Dict[str, Optional[str]]:
    """For each pattern of a name the library that the loader would find: by LD_LIBRARY_PATH, else by its cache."""
    paths = []
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        try:
            paths += [os.path.join(folder, name) for name in sorted(os.listdir(folder))] if folder else []
        except OSError:
            continue
    try:
        with open(LOADER_CACHE, "rb") as file:
            paths += [os.fsdecode(text) for text in file.read().split(b"\0") if text.startswith(b"/")]
    except OSError:
        pass  # musl has none
    return {
        key: next((path for path in paths if pattern.match(path.rpartition("/")[2])), None)
        for key, pattern in patterns.items()
    }


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        question = json.loads(file.read().decode("ascii"))
    result = {
        "executable": sys.executable,
        "python": list(sys.version_info[:3]),
        "packages": packages(),
        "limits": limits(),
        "script": script(question["script"], question["workdir"]),
        "settings": {name: value for name, value in os.environ.items() if SETTINGS.match(name)},
    }
    result.update(libraries(LIBRARIES))
    torch = torch_versions()
    result.update(torch, build_locks=build_locks(torch["path"]))
    print("\n%s%s" % (question["marker"], json.dumps(result)))


if __name__ == "__main__":
    main()
