"""The operations of the node program, and how answers are decoded. Each is defined next to the type of its answer.

A host may be broken or hostile. A session decodes its answers when they arrive: afterwards every key is present and of
its type, and names, ids, states and times have valid values. Free text, such as a command line, may still contain
anything; it is made harmless where it is shown. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .decode import decode

A = TypeVar("A")
D = TypeVar("D")
Arguments = dict[str, Any]
"""The arguments of a request, or a part of them, as JSON for the host."""


@dataclass(frozen=True)
class Operation(Generic[A]):
    """A request to a host, and the type of its answer."""

    name: str
    answer: type[A]

    def decode(self, result: Any) -> A:
        """Raises MalformedAnswer."""
        return decode(self.answer, result, self.name)


@dataclass(frozen=True)
class Streaming(Operation[A], Generic[A, D]):
    """An operation that sends data before its answer."""

    decode_data: Callable[[Mapping[str, Any], bytes], D]
    """Decodes (header, payload) of a DATA frame. Raises MalformedAnswer."""


@dataclass(frozen=True)
class Nothing:
    """The empty answer of operations that only succeed or fail."""
