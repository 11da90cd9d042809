"""Check that each host can start its container, and that equal names mean equal images. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..answers.facts import ContainerFacts, Facts
from ..inventory.container import Container, candidates, has_image
from ..plan.plan import Node
from .engine_advice import advice_for, command
from .findings import Findings, shell_word

SHOWN_ID = 12  # characters


def check_containers(nodes: list[Node], facts: Mapping[str, Facts], head: str, findings: Findings) -> None:
    images: dict[str, dict[str, ContainerFacts]] = {}
    for node in nodes:
        container, found = node.host.container, facts[node.host.name].container
        if not has_image(container) or found is None or found.engine is None:
            continue
        if found.image:
            images.setdefault(container.image, {})[node.host.name] = found
        if found.needs_linger:
            message = "systemd removes the files of rootless podman when your last login ends"
            fix = "loginctl enable-linger; if that is denied: sudo loginctl enable-linger $USER"
            seen = "loginctl show-user --property=Linger: Linger=no"
            findings.add("warning", "container-needs-linger", node.host.name, message, fix, seen)
        if facts[node.host.name].gpus and node.host.gpus != "none" and not found.gpus:
            _no_toolkit(node, found.engine, container.image, findings)
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
        advice = advice_for(str(next(iter(hosts.values())).engine), image)
        fix += command(advice.copy, image, next(iter(hosts)))
        name = f"image {image} with id"
        findings.differ("warning", "container-image-differs", name, values, head, fix, command(advice.look, image))


def _no_toolkit(node: Node, engine: str, image: str, findings: Findings) -> None:
    advice = advice_for(engine, image)
    message = f"{engine} cannot give GPUs to a container: {advice.toolkit_name} is not set up"
    seen = command(advice.toolkit_look, image)
    findings.add("error", "no-gpu-visible", node.host.name, message, command(advice.toolkit, image), seen)


def fix_of(code: str, container: Container, host: str) -> str:
    """What helps where a container cannot be started; "" for codes of other findings."""
    engine = candidates(container)[0]
    advice = advice_for(engine, container.image)
    copy = "ddp-orch setup" if can_be_copied(container) else command(advice.copy, container.image, host)
    return {
        "container-engine-missing": f"install {engine} there, or remove `container`",
        "container-engine-unusable": f"try it there: {command(advice.attempt, container.image)}{advice.denied}",
        "container-image-missing": f"{pull_of(container)}; from another host: {copy}",
        "container-ids-missing": advice.ids,
    }.get(code, "")


def can_be_copied(container: Container) -> bool:
    """Whether `setup` can copy the image from another host: it is a file, or an engine makes an archive of it."""
    is_file = container.image.startswith("/")
    return is_file or (candidates(container)[0] != "enroot" and "@" not in container.image)


def pull_of(container: Container, engine: str | None = None) -> str:
    """How all hosts get the image. `engine`: which one they have; None: the preferred one."""
    advice = advice_for(engine or candidates(container)[0], container.image)
    return _on_all_hosts(command(advice.pull, container.image))


def _on_all_hosts(command_line: str) -> str:
    return "ddp-orch exec -- " + (f"bash -c {shell_word(command_line)}" if "&&" in command_line else command_line)
