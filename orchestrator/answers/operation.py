"""What a host can be asked to do, and how its answer is decoded. Each operation stands beside the type of its answer.

A host may be broken, or in hostile hands. Its answers are data of other people until they are decoded, which a session
does as they come in: then every key is there and of its type, and no name, id, state or time holds anything but what
such a thing is made of. What is text by nature (a command line, a host's own words) is tamed where it is shown. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .decode import decode

A = TypeVar("A")
D = TypeVar("D")
Arguments = dict[str, Any]
"""Of a request, or a part of them: JSON for a host, made where it is sent and read by nobody here."""


@dataclass(frozen=True)
class Operation(Generic[A]):
    """Something that a host can be asked to do, and the type of its answer."""

    name: str
    answer: type[A]

    def decode(self, result: Any) -> A:
        """Raises MalformedAnswer."""
        return decode(self.answer, result, self.name)


@dataclass(frozen=True)
class Streaming(Operation[A], Generic[A, D]):
    """One that gives data before its answer."""

    decode_data: Callable[[Mapping[str, Any], bytes], D]
    """What the header of a DATA frame says. Raises MalformedAnswer."""


@dataclass(frozen=True)
class Nothing:
    """The answer to what gives none but its success."""
