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
        fix = "pull it again on these hosts, or name it by its digest; to copy it: "
        fix += _copy(str(next(iter(hosts.values())).engine), image, next(iter(hosts)))
        name = f"image {image} with id"
        seen = f"{next(iter(hosts.values())).engine} image inspect {image}"
        findings.differ("warning", "container-image-differs", name, values, head, fix, seen)


def _no_toolkit(node: Node, engine: str, findings: Findings) -> None:
    fix = "install NVIDIA's Container Toolkit, then: "
    fix += {
        "podman": "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "docker": "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    }.get(engine, "")
    message = f"{engine} cannot give GPUs to a container: NVIDIA's Container Toolkit is not set up"
    findings.add("error", "no-gpu-visible", node.host.name, message, fix, "ls /etc/cdi /var/run/cdi")


def fix_of(code: str, container: Container, host: str) -> str:
    """What helps where a container cannot be started; "" for codes of other findings."""
    image = shell_word(container.image)
    engine = "podman" if container.engine == "auto" else container.engine
    unusable = f"try it there: {engine} run --rm --pull=never {image} true"
    if engine == "docker":
        unusable += "; if the daemon denies you: sudo usermod -aG docker $USER (this group is as powerful as root)"
    return {
        "container-engine-missing": f"install {engine} there, or remove `container`",
        "container-engine-unusable": unusable,
        "container-image-missing": f"ddp-orch exec -- {engine} pull {image}; from another host: "
        f"{_copy(engine, container.image, host)}",
        "container-ids-missing": "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; "
        "podman system migrate",
    }.get(code, "")


def _copy(engine: str, image: str, host: str) -> str:
    return f"{engine} save {shell_word(image)} | ssh {shell_word(host)} {engine} load"
