"""Find Python interpreters with torch, GPUs and networks on hosts, for `init`. Writes nothing there."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import OrchError
from ..hosts.fleet import Fleet, Results, each
from ..inventory.model import Host
from ..output.terminal import one_line
from ..ssh.dialer import quote

PLACES = (
    '"$VIRTUAL_ENV"/bin/python',
    '"$CONDA_PREFIX"/bin/python',
    '"$HOME"/.local/share/ddp-orch/venv/bin/python',
    '"$HOME"/.venv/bin/python',
    '"$HOME"/*/bin/python',
    '"$HOME"/*/.venv/bin/python',
    '"$HOME"/*conda*/envs/*/bin/python',
    '"$HOME"/*forge*/envs/*/bin/python',
    '"$HOME"/.conda/envs/*/bin/python',
    '"$HOME"/.virtualenvs/*/bin/python',
    "/opt/*/bin/python",
    "/opt/*conda*/envs/*/bin/python",
    "/usr/local/bin/python3",
)
"""Where people have their environments. `python3` of the login shell comes first."""

NOT_REAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap", "wg", "dummy", "ifb")
"""Interfaces that other hosts do not reach."""

MAX_PYTHONS = 40
"""That a host tries: importing nothing, each takes some 20 ms."""

ASK = """
import sys
from importlib.metadata import version
if sys.version_info < (3, 8):
    sys.exit(1)
print(sys.executable, version("torch"))
"""

SCRIPT = """
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) && echo "gpus $(echo "$gpus" | sort | uniq -c)"
count=0
for python in python3 PLACES; do
  [ "$python" = python3 ] || [ -x "$python" ] || continue
  count=$((count + 1))
  [ $count -le MOST ] || break
  answer=$(timeout 10 "$python" -c "$1" 2>/dev/null < /dev/null) && echo "python $python $answer"
done
ip -o -4 addr show up scope global 2>/dev/null | while read -r _ name _ address _; do
  echo "network $name $address $(cat /sys/class/net/$name/speed 2>/dev/null)"
done
exit 0
""".replace("PLACES", " ".join(PLACES)).replace("MOST", str(MAX_PYTHONS))


@dataclass(frozen=True)
class FoundPython:
    """An interpreter with torch."""

    path: str
    """`python3`, or an absolute path."""
    torch: str
    """The version of torch."""


@dataclass(frozen=True)
class FoundNetwork:
    """An interface with an address."""

    interface: str
    network: str
    """Such as `10.1.2.0/24`."""
    mbit: int
    """The speed of the link; 0: unknown."""


@dataclass(frozen=True)
class HostPythons:
    """What a host has."""

    pythons: tuple[FoundPython, ...]
    gpus: str
    """Such as `8 NVIDIA H200`; "" for none."""
    networks: tuple[FoundNetwork, ...] = ()


def find_pythons(fleet: Fleet, hosts: Sequence[Host]) -> Results[HostPythons]:
    """Ask all hosts. A host without torch has no `pythons`; one that is unreachable is in `failed`."""

    def ask(host: Host) -> HostPythons:
        output = fleet.run_on(host, _command(host))
        if output.status:
            raise OrchError(f"{host.name}: looking for Python failed: {one_line(output.stderr.strip()[-200:])}")
        return parse(output.stdout)

    return each(hosts, ask, fleet.parallel, fleet.progress, "looking for Python with torch")


def _command(host: Host) -> str:
    """The script for a login shell of any kind. In csh, no argument may have a newline."""
    script = "\n".join([*host.setup, f"set -- {shlex.quote(ASK)}", SCRIPT])
    encoded = base64.b64encode(script.encode()).decode()
    return quote(("bash", "-lc", f'eval "$(echo {encoded} | base64 -d)"'))


def parse(output: str) -> HostPythons:
    """Read the output of SCRIPT. Other lines, such as those of a login script, are ignored."""
    pythons: dict[str, FoundPython] = {}
    gpus = ""
    networks = []
    for line in output.splitlines():
        match line.split():
            case ["python", name, executable, torch] if name == "python3" or executable.startswith("/"):
                pythons.setdefault(executable, FoundPython(name, torch))
            case ["gpus", *words]:
                gpus = " ".join(words)
            case ["network", interface, address, *speed] if not interface.startswith(NOT_REAL):
                with contextlib.suppress(ValueError):  # a host may print anything
                    network = str(ipaddress.ip_interface(address).network)
                    mbit = int(speed[0]) if speed and speed[0].isdecimal() else 0
                    networks.append(FoundNetwork(interface, network, mbit))
    return HostPythons(tuple(pythons.values()), gpus, tuple(networks))


def choose(found: Mapping[str, HostPythons]) -> dict[str, FoundPython]:
    """An interpreter for each host that has one: the one that most hosts have with the same torch.

    All ranks need the same version of torch. Among equals, the first place counts.
    """
    votes = Counter(python for host in found.values() for python in host.pythons)
    releases = Counter(torch for host in found.values() for torch in {python.torch for python in host.pythons})
    chosen: dict[str, FoundPython] = {}
    for name, host in found.items():
        if host.pythons:
            chosen[name] = max(host.pythons, key=lambda python: (releases[python.torch], votes[python]))
    return chosen


def shared_networks(found: Mapping[str, HostPythons]) -> dict[str, dict[str, FoundNetwork]]:
    """The networks in which all hosts have an address, the fastest link first: by network and host."""
    by_network: dict[str, dict[str, FoundNetwork]] = {}
    for name, host in found.items():
        for each_network in host.networks:
            by_network.setdefault(each_network.network, {}).setdefault(name, each_network)
    shared = {network: hosts for network, hosts in by_network.items() if len(hosts) == len(found) > 1}
    return dict(sorted(shared.items(), key=lambda item: -min(link.mbit for link in item[1].values())))


def usual_path(chosen: Mapping[str, FoundPython]) -> str | None:
    """The path that most hosts have; None: no host has one."""
    paths = Counter(python.path for python in chosen.values())
    return max(paths, key=paths.__getitem__, default=None)
