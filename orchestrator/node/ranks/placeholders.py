"""Fill in the placeholders of a launcher, and of the user's words where its scope is a host.

`{node_rank}` is replaced, `{{node_rank}}` stands for a literal `{node_rank}`, and `${node_rank}` is left to OmegaConf.
"""

import json
import re
from typing import Any, Dict, List, Set

from ..gang import gang_events
from ..host import network

OF_ALL_HOSTS = ("hosts", "addresses", "address_lines", "tf_config")  # what only the head knows
COMMAND = "{command}"  # in a launcher's argv: the user's words
_PLACE = re.compile(r"(?<!\$)(?<!\$\{)(?:\{\{([a-z_]+)\}\}|\{([a-z_]+)\})")


def fill_in(text: str, values: Dict[str, str]) -> str:
    """Names that are not in `values` stay as they are."""

    def replace(match: Any) -> str:
        name = match.group(1) or match.group(2)
        if name not in values:
            return str(match.group())
        return "{%s}" % name if match.group(1) else values[name]

    return _PLACE.sub(replace, text)


def names_in(text: str) -> Set[str]:
    return {match.group(2) for match in _PLACE.finditer(text) if match.group(2)}


def names_all_hosts(spec: Dict[str, Any]) -> bool:
    """Whether the launcher, or the command that it starts once per host, has one of these placeholders."""
    launcher = spec["launcher"]
    texts = [*launcher["argv"], *launcher["worker"], *launcher["env"].values(), launcher["ready"]]
    if launcher["scope"] == "host":
        texts += spec["command"]
    return any(match.group(2) in OF_ALL_HOSTS for text in texts for match in _PLACE.finditer(text))


def of_host(spec: Dict[str, Any], order: gang_events.Run, output: str) -> Dict[str, str]:
    """The placeholders that are the same for all ranks of this node, in addition to those of the agent."""
    nodes = spec["nodes"]
    ranks = [node["ranks"] for node in nodes if not node.get("witness")]
    planned = sum(node["ranks"] for node in nodes if not (node["spare"] or node.get("witness")))
    # with uneven hosts, the planner has made sure that all of them take part
    world_size = order.nnodes * ranks[0] if len(set(ranks)) == 1 else planned
    if spec["launcher"]["scope"] == "rank":
        world_size = order.world_size
    return {
        "nproc_per_node": str(nodes[spec["node"]]["ranks"]),
        "world_size": str(world_size),
        "host": spec["host"],
        "run": spec["name"],
        "job_id": "".join(filter(str.isdigit, spec["run_id"]))[8:14].lstrip("0") or "0",  # the time in it, HHMMSS
        "python": spec["python"],
        "output": output,
        "output_dir": output,
        **_of_all_hosts(order),
    }


def _of_all_hosts(order: gang_events.Run) -> Dict[str, str]:
    """`tf_config`: as TensorFlow reads it. Every host listens on the port that is free on the first one."""
    workers = [network.endpoint(address, order.master_port) for address, _ in order.hosts]
    task = {"type": "worker", "index": order.node_rank}
    return {
        "hosts": ",".join(network.endpoint(address, ranks) for address, ranks in order.hosts),
        "addresses": ",".join(address for address, _ in order.hosts),
        "address_lines": "\n".join(address for address, _ in order.hosts),
        "tf_config": json.dumps({"cluster": {"worker": workers}, "task": task}),
    }


def host_argv(launcher: Dict[str, Any], words: List[str], values: Dict[str, str]) -> List[str]:
    """The words of the launcher around those of the user."""
    template = launcher["argv"] + (launcher["worker"] if values["node_rank"] != "0" else [])
    return around([fill_in(word, values) for word in words], template, values)


def around(command: List[str], template: List[str], values: Dict[str, str]) -> List[str]:
    """The words of a template, with a command in its place."""
    argv = []  # type: List[str]
    for word in template:
        argv += command if word == COMMAND else [fill_in(word, values)]
    return argv
