"""The answers to `find_image`, `offer_image` and `take_image`: an image that one host copies from another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .decode import decode
from .fields import Address, Port
from .operation import Operation, Streaming


@dataclass(frozen=True)
class FoundImage:
    """The answer to `find_image`."""

    engine: str | None
    """Which one would be used; None: none can."""
    image: tuple[str, ...]
    """What is equal for equal images; empty: the host does not have it."""
    size: int | None
    """Bytes; None: unknown."""
    code: str | None
    """The code of the finding about what is missing."""
    why: str | None
    """The same in words."""


@dataclass(frozen=True)
class OfferedImage:
    """The answer to `offer_image`: the host sends the image to whoever connects and proves the key."""

    addresses: tuple[Address, ...]
    port: Port


@dataclass(frozen=True)
class TakenImage:
    """The answer to `take_image`."""

    bytes: int
    seconds: float
    sha256: str
    """Of what arrived, the same on both hosts."""


@dataclass(frozen=True)
class Arrived:
    """Data of `take_image`."""

    received: int
    """Bytes so far."""


def _decode_arrived(header: Mapping[str, Any], _: bytes) -> Arrived:
    return decode(Arrived, header, "take_image")


FIND_IMAGE = Operation("find_image", FoundImage)
OFFER_IMAGE = Operation("offer_image", OfferedImage)
TAKE_IMAGE = Streaming("take_image", TakenImage, _decode_arrived)
