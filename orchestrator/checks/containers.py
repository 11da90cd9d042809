"""Check that each host can start its container, and that equal names mean equal images. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..answers.facts import ContainerFacts, Facts
from ..inventory.container import Container
from ..plan.plan import Node
from .findings import Findings, shell_word

SHOWN_ID = 12  # characters


def check_containers(nodes: list[Node], facts: Mapping[str, Facts], head: str, findings: Findings) -> None:
    images: dict[str, dict[str, ContainerFacts]] = {}
    for node in nodes:
        container, found = node.host.container, facts[node.host.name].container
        if container == "none" or found is None or found.engine is None:
            continue
        if found.image:
            images.setdefault(container.image, {})[node.host.name] = found
        if found.needs_linger:
            message = "systemd removes the files of rootless podman when your last login ends"
            fix = "loginctl enable-linger; if that is denied: sudo loginctl enable-linger $USER"
            seen = "loginctl show-user --property=Linger: Linger=no"
            findings.add("warning", "container-needs-linger", node.host.name, message, fix, seen)
        if facts[node.host.name].gpus and node.host.gpus != "none" and not found.gpus:
            _no_toolkit(node, found.engine, findings)
    for image, hosts in images.items():
        values: dict[str, str] = {}
        groups: dict[str, set[str]] = {}  # by the first id in it
        for host, found in hosts.items():
            # ids differ between storage drivers, digests are missing where an image was loaded from a file
            known = (first for first, group in groups.items() if group & set(found.image))
            first = next(known, found.image[0])
            groups.setdefault(first, set()).update(found.image)
            values[host] = first.removeprefix("sha256:")[:SHOWN_ID]
        fix = f"pull it again on these hosts, or name it by its digest; to copy it: {_copy(image, next(iter(hosts)))}"
        name = f"image {image} with id"
        findings.differ("warning", "container-image-differs", name, values, head, fix, f"podman image inspect {image}")


def _no_toolkit(node: Node, engine: str, findings: Findings) -> None:
    fix = "install NVIDIA's Container Toolkit, then: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    message = f"{engine} cannot give GPUs to a container: NVIDIA's Container Toolkit is not set up"
    findings.add("error", "no-gpu-visible", node.host.name, message, fix, "ls /etc/cdi /var/run/cdi")


def fix_of(code: str, container: Container, host: str) -> str:
    """What helps where a container cannot be started; "" for codes of other findings."""
    image = shell_word(container.image)
    return {
        "container-engine-missing": "install podman there, or remove `container`",
        "container-engine-unusable": f"try it there: podman run --rm --pull=never {image} true",
        "container-image-missing": f"ddp-orch exec -- podman pull {image}; from another host: {_copy(image, host)}",
        "container-ids-missing": "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; "
        "podman system migrate",
    }.get(code, "")


def _copy(image: str, host: str) -> str:
    return f"podman save {shell_word(image)} | ssh {shell_word(host)} podman load"
