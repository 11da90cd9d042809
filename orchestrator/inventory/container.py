"""`container`: the image in which the ranks of a host run, and how it is started. No IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .hostnames import nearest
from .values import Kind, Reading, choice, items, like, word_or
from .yaml_source import Map, Node

NONE = "none"
ENGINES = ("podman", "docker")


@dataclass(frozen=True, kw_only=True)
class Container:
    image: str
    engine: Literal["auto", "podman", "docker"]
    mounts: tuple[str, ...]  # PATH[:PATH][:ro]
    options: tuple[str, ...]  # words for the engine, after those of ddp-orch


_IMAGE = like("the name of an image", r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,254}")
_MOUNT = like("PATH, PATH:PATH or PATH:PATH:ro with absolute paths", r"(?s)/[^:,\x00]*(:/[^:,\x00]*)?(:ro)?")
_KEYS: dict[str, tuple[Kind, Any]] = {
    "image": (_IMAGE, ""),
    "engine": (choice("auto", *ENGINES), "auto"),
    "mounts": (items("a list of paths", _MOUNT, unique=True), ()),
    "options": (items("a list of words", like("a word", r"(?s).+")), ()),
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
    if f"{key}.image" not in reading.marks:
        reading.wrong(node.mark, key, "the image is missing")
    return Container(**values)


def _write(container: Container) -> Any:
    return {name: kind.write(getattr(container, name)) for name, (kind, _) in _KEYS.items()}


KIND = word_or(NONE, Kind("an image or a mapping", _read, _write, single=False))


def as_spec(container: Container | Literal["none"], found: Any = None) -> dict[str, Any] | None:
    """What a host needs to start it. `found`: its answers.facts.ContainerFacts, which name the engine that it has."""
    if container == "none":
        return None
    engine = found.engine if found is not None else None
    if engine is None:
        engine = ENGINES[0] if container.engine == "auto" else container.engine
    words = {"mounts": list(container.mounts), "options": list(container.options)}
    return {"engine": engine, "image": container.image, **words}


def check(hosts: Iterable[Any], preload: object, reading: Reading) -> None:
    """Note that ranks in containers cannot be preloaded. `hosts`: of model.Host."""
    inside = [host.name for host in hosts if host.container != NONE]
    if isinstance(preload, tuple) and inside:
        message = (
            f"{inside[0]} has a container, and ranks in containers cannot be preloaded; remove one of the two keys"
        )
        reading.wrong(reading.marks["run.preload"], "run.preload", message)
