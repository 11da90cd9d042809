"""What the keys of a task of SkyPilot or dstack become here. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .yaml_source import Map, Node, Scalar
from .yaml_source import Sequence as List

SKYPILOT, DSTACK = "SkyPilot", "dstack"
MAX_NAMES = 6  # variables that are listed
_SKYPILOT = {"resources", "num_nodes", "file_mounts", "envs"}  # keys of other files that no inventory has
_DSTACK = {"commands", "nodes"}

_WITH_NAMES = {"envs", "env", "secrets"}  # keys of variables
_ENVS = "run.env of the inventory, or `-e NAME=VALUE`, or `--env-file FILE` of `up`"
_FILES = "a folder on a shared disk, or run.sync for small files, which lie beside the script as they do here"
_NODES = "all hosts of the inventory, or --hosts 'any {value}'"
# by tool and key, in the order of the message
_MEANINGS = {
    SKYPILOT: {
        "name": "--name {value} of `up`, or nothing",
        "envs": _ENVS,
        "secrets": "list the names in run.secrets, and export the values",
        "setup": "for packages, `ddp-orch exec --setup -- pip install ...`, once; for each start, `setup` of the hosts",
        "file_mounts": _FILES + "; a path such as /data/train.bin has to be on the hosts",
        "num_nodes": _NODES,
        "workdir": "nothing: `up` sends the git repository, or the folder of the script",
        "resources": "`gpus` and `container` of the hosts, where the defaults do not fit",
    },
    DSTACK: {
        "env": _ENVS,
        "nodes": _NODES,
        "image": "run.container",
        "files": _FILES,
        "resources": "`gpus` of the hosts, where the default does not fit",
    },
}
_VALUES = "; take their values out of this file, or `up` sends it with them if it is among the code"
_OF_LINES = {
    r"sky_workdir": "`cd ~/sky_workdir`: remove it; the script starts in the folder of the code",
    r"--master[_-]port[= ]\d+": "--master_port: `$MASTER_PORT` is a free port, also if several runs share the hosts",
}
_DETAILS = {
    "run": _OF_LINES,
    "commands": _OF_LINES,
    "setup": {
        r"-r[ =]?\S+": "pip install -r FILE: `ddp-orch exec --setup -- pip install $(cat FILE)`, as it sends no files"
    },
    "resources": {
        r"job_recovery|use_spot": "job_recovery, use_spot: run.max_restarts; a spare takes the place of a lost host. "
        "With --hosts 'any N', `ddp-orch restart RUN` moves the run to hosts that are free"
    },
    "file_mounts": {
        r"\b(store|MOUNT)\b": "a bucket for checkpoints: save in `$DDP_ORCH_OUTPUT_DIR` instead of its path, with "
        "run.output on a shared disk. Without one, set run.resume if only some hosts save; what they saved last is "
        "lost with them"
    },
}
"""By key: what else becomes what, if the pattern is in its value."""
_LINES = {SKYPILOT: "run", DSTACK: "commands"}
_MORE = {SKYPILOT: '\n  More: docs/comparison.md, "Coming from SkyPilot"', DSTACK: ""}


def describe_task(root: Map) -> str | None:
    """What to do with such a task, and with each key that it has; None: it is something else."""
    nodes = {key.text: node for key, node in root.items if isinstance(key, Scalar)}
    tool = _tool(nodes)
    if tool is None:
        return None
    meanings = {**_MEANINGS[tool], _LINES[tool]: ""}
    lines = [line for key, text in meanings.items() if key in nodes for line in _explain(key, text, nodes[key])]
    return (
        f"this is a task of {tool}; an inventory lists hosts. Write one with `ddp-orch init HOST...`, put the lines of "
        f"`{_LINES[tool]}` into a script that begins with `set -e`, or a line that fails does not end it, and start "
        f"it: ddp-orch up --set run.launcher={tool.lower()} -- bash SCRIPT"
        + ("\n    ".join(["\n  here, the rest of it becomes:", *lines]) if lines else "")
        + _MORE[tool]
    )


def _tool(nodes: Mapping[str, Node]) -> str | None:
    if "hosts" in nodes:
        return None
    if nodes.keys() & _DSTACK and "type" in nodes:
        return DSTACK
    has_lines = isinstance(nodes.get("run"), Scalar) and nodes.keys() & {"setup", "secrets", "workdir"}
    return SKYPILOT if nodes.keys() & _SKYPILOT or has_lines else None


def _explain(key: str, text: str, node: Node) -> list[str]:
    value = node.text if isinstance(node, Scalar) and re.fullmatch(r"[\w.-]+", node.text) else "N"
    names = _names(node) if key in _WITH_NAMES else ()
    shown = ", ".join([*names[:MAX_NAMES], *(["..."] if len(names) > MAX_NAMES else [])])
    values = _VALUES if key == "secrets" and isinstance(node, Map) else ""
    meaning = [f"{key}{f' ({shown})' if names else ''}: {text.format(value=value)}{values}"] if text else []
    details = _DETAILS.get(key, {})
    return meaning + [detail for pattern, detail in details.items() if re.search(pattern, _text(node))]


def _text(node: Node) -> str:
    if isinstance(node, Scalar):
        return node.text
    nodes = node.items if isinstance(node, List) else (part for item in node.items for part in item)
    return "\n".join(map(_text, nodes))


def _names(node: Node) -> Sequence[str]:
    """Of the variables in a mapping, or in a list such as `[NAME, NAME=VALUE]`. Values may be secret."""
    if isinstance(node, Map):
        words = [key.text for key, _ in node.items if isinstance(key, Scalar)]
    elif isinstance(node, List):
        words = [item.text.partition("=")[0] for item in node.items if isinstance(item, Scalar)]
    else:
        words = []
    return [word for word in words if word.isidentifier()]
