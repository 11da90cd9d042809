"""`container`: the image in which the ranks of a host run, or a running container in which all happens. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from .hostnames import nearest
from .values import Kind, Reading, choice, env, items, like, text, word_or
from .yaml_source import Map, Node

NONE = "none"

# what each engine takes as an image, in the order in which `auto` tries them: a test holds it to those that hosts know
ENGINES = {
    "podman": ("name",),
    "docker": ("name",),
    "enroot": ("name", "squashfs"),
    "apptainer": ("squashfs", "path"),
    "singularity": ("squashfs", "path"),
}
ENTERED = ("podman", "docker")  # engines of `enter`
_SQUASHFS = (".sqsh", ".squashfs")
_TAKES = {"name": "the name of an image", "squashfs": "the absolute path of a .sqsh file", "path": "an absolute path"}


@dataclass(frozen=True, kw_only=True)
class Container:
    image: str  # "" with `enter`
    enter: str  # the name of a container that is running; "": containers are started from the image
    engine: str  # auto, or a key of ENGINES
    mounts: tuple[str, ...]  # PATH[:PATH][:ro]
    options: tuple[str, ...]  # words for the engine, after those of ddp-orch
    env: Mapping[str, str]  # of the ranks in it; those of the host override them


def _image(value: str) -> str:
    if re.match(r"(docker|dockerd|podman|library|oras|shub)://", value):
        raise ValueError(
            f"ddp-orch does not download images; bring it to the hosts once, with podman pull, apptainer pull or "
            f"enroot import {value}, and set the name or the absolute path of what you get"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,254}|/[^\x00-\x1f]{1,4000}", value):
        raise ValueError
    return value


_IMAGE = text("the name of an image, or the absolute path of one", _image)
_MOUNT = like("PATH, PATH:PATH or PATH:PATH:ro with absolute paths", r"(?s)/[^:,\x00]*(:/[^:,\x00]*)?(:ro)?")
_KEYS: dict[str, tuple[Kind, Any]] = {
    "image": (_IMAGE, ""),
    "enter": (like("the name of a container", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}"), ""),
    "engine": (choice("auto", *ENGINES), "auto"),
    "mounts": (items("a list of paths", _MOUNT, unique=True), ()),
    "options": (items("a list of words", like("a word", r"(?s).+")), ()),
    "env": (env, {}),
}


def _read(node: Node, key: str, reading: Reading) -> Container:
    values = {name: default for name, (_, default) in _KEYS.items()}
    if not isinstance(node, Map):
        values["image"] = _IMAGE.read(node, key, reading)
        return Container(**values)
    for name, inner, mark, value in reading.entries(node, key):
        if name in _KEYS:
            values[name] = reading.read(_KEYS[name][0], value, inner, values[name])
        else:
            reading.wrong(mark, inner, f"unknown key; {nearest(name, list(_KEYS))}")
    container = Container(**values)
    if f"{key}.enter" in reading.marks:
        _check_enter(container, key, reading)
        return container
    if f"{key}.image" not in reading.marks:
        reading.wrong(node.mark, key, "the image is missing")
    if container.image and not candidates(container):
        forms = " or ".join(_TAKES[form] for form in ENGINES[container.engine])
        reading.wrong(reading.marks[f"{key}.image"], f"{key}.image", f"{container.engine} takes {forms}")
    return container


def _check_enter(container: Container, key: str, reading: Reading) -> None:
    for name in ("image", "mounts", "options"):
        if f"{key}.{name}" in reading.marks:
            message = "a container that is already running has it; remove this key or `enter`"
            reading.wrong(reading.marks[f"{key}.{name}"], f"{key}.{name}", message)
    if container.engine not in ("auto", *ENTERED):
        message = f"containers of {' and '.join(ENTERED)} can be entered; use `via` for others (docs/ssh.md)"
        reading.wrong(reading.marks[f"{key}.engine"], f"{key}.engine", message)


def has_image(container: Container | Literal["none"]) -> TypeGuard[Container]:
    """Whether the ranks of a host run in containers that are started for them."""
    return container != "none" and not container.enter


def is_entered(container: Container | Literal["none"]) -> TypeGuard[Container]:
    """Whether all of ddp-orch on a host runs in a container that is already there."""
    return container != "none" and bool(container.enter)


def candidates(container: Container) -> list[str]:
    """The engines that may start it, the preferred one first."""
    form = "name"
    if container.image.startswith("/"):
        form = "squashfs" if container.image.endswith(_SQUASHFS) else "path"
    return [name for name, forms in ENGINES.items() if form in forms and container.engine in ("auto", name)]


def _write(container: Container) -> Any:
    empty = ("image", "mounts", "options") if container.enter else ("enter",)
    return {name: kind.write(getattr(container, name)) for name, (kind, _) in _KEYS.items() if name not in empty}


KIND = word_or(NONE, Kind("an image or a mapping", _read, _write, single=False))


def as_question(container: Container | Literal["none"]) -> dict[str, Any] | None:
    """What a host needs to look for an engine and the image."""
    if not has_image(container):
        return None
    return {"engines": candidates(container), **_words(container)}


def as_spec(container: Container | Literal["none"], found: Any = None) -> dict[str, Any] | None:
    """What a host needs to start it. `found`: its answers.facts.ContainerFacts, which name the engine that it has."""
    if not has_image(container):
        return None
    if found is None or found.engine is None:  # the start fails, and names what is missing
        return {"engine": candidates(container)[0], "cdi": False, **_words(container)}
    return {"engine": found.engine, "cdi": found.cdi, **_words(container)}


def _words(container: Container) -> dict[str, Any]:
    return {"image": container.image, "mounts": list(container.mounts), "options": list(container.options)}


def variables(container: Container | Literal["none"]) -> Mapping[str, str]:
    """`env` of the container that the ranks of a host are in."""
    return {} if container == "none" else container.env


def check(hosts: Sequence[Any], preload: object, secrets: Sequence[str], reading: Reading) -> None:
    """Note that ranks in containers cannot be preloaded, and secrets with a value. `hosts`: of model.Host."""
    for name in secrets:
        if any(name in variables(host.container) for host in hosts):
            keys = [key for key in reading.marks if key.endswith(f"container.env.{name}")]
            reading.wrong(reading.marks[keys[0]], keys[0], "also in run.secrets; remove one of them")
    inside = [host.name for host in hosts if has_image(host.container)]
    if isinstance(preload, tuple) and inside:
        message = (
            f"{inside[0]} has a container, and ranks in containers cannot be preloaded; remove one of the two keys"
        )
        reading.wrong(reading.marks["run.preload"], "run.preload", message)
