"""Decode JSON into frozen dataclasses by their type hints, and reject what does not fit. No IO.

A host may be broken or hostile, so its answers are checked here, once: afterwards every key is present and of its type.
Supported types:

- `str`, `bool`, `None`; `int` of at most 64 bits and a sign; `float`, a finite number, which JSON may write as an int;
  `AnyFloat`, which may also be nan or infinite; `Any`, which is not checked;
- dataclasses: a field with a default may be missing, and keys without a field are ignored (newer node programs);
- `tuple[X, ...]`, `tuple[X, Y]`, `Mapping[K, V]`, `Literal`, `X | Y` (the first that fits);
- `Annotated[X, test]`: `test` is called with the decoded value, and returns something true if it is valid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
AnyFloat = NewType("AnyFloat", float)
LARGEST = 1 << 64
MAX_DEPTH = 32  # levels of an answer; code that walks through deeper JSON would exhaust the stack
NOT_NULL = {"not null": True}
"""Metadata of a field whose key may be missing but must not be null; its default is None."""


class MalformedAnswer(Exception):
    """An answer that no node program gives; the text is the path to the invalid value."""


def decode(kind: type[T], value: Any, name: str) -> T:
    """Decode a value of json.loads. Raises MalformedAnswer, with a path that starts with `name`."""
    if _is_too_deep(value):
        raise MalformedAnswer(f"{name}: nested too deeply")
    try:
        return cast(T, _reader(cast(Hashable, kind))(value))
    except _WrongValue as error:
        raise MalformedAnswer(name + "".join(reversed(error.path))) from None


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


class _WrongValue(Exception):
    """A value is not of its type."""

    def __init__(self, *path: str) -> None:
        super().__init__(path)
        self.path = list(path)
        """The last step first."""


Reader = Callable[[Any], Any]
Test = Callable[[Any], Any]


@cache
def _reader(hint: Any) -> Reader:
    """Decodes values of a type, or raises _WrongValue."""
    if hint in _TESTS:
        return _scalar_reader(_TESTS[hint])
    if dataclasses.is_dataclass(hint):
        return _class_reader(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated and parts[0] in _TESTS:
        return _scalar_reader(_TESTS[parts[0]], parts[1])
    if origin is Annotated:
        return _tested(_reader(parts[0]), parts[1])
    if origin in (Union, UnionType):
        return _union_reader([_reader(part) for part in parts])
    if origin is Literal:
        return _scalar_reader(_TESTS[type(parts[0])], parts.__contains__)
    if origin is tuple and parts[-1] is Ellipsis:
        return _list_reader(_reader(parts[0]))
    if origin is tuple:
        return _tuple_reader([_reader(part) for part in parts])
    if origin is Mapping:
        return _mapping_reader(*map(_reader, parts))
    raise TypeError(f"no value of JSON is decoded as {hint}")


def _class_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (
            field.name,
            _reader(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            field.metadata == NOT_NULL,
        )
        for field in dataclasses.fields(kind)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _WrongValue
        known = {}
        for name, reader, required, not_null in fields:
            if name not in value:
                if required:
                    raise _WrongValue(f".{name}")
                continue
            if not_null and value[name] is None:
                raise _WrongValue(f".{name}")
            try:
                known[name] = reader(value[name])
            except _WrongValue as error:
                error.path.append(f".{name}")
                raise
        return kind(**known)

    return read


def _list_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _WrongValue
        known: list[Any] = []
        try:
            for item in value:
                known.append(reader(item))  # if it fails, len(known) is the index of the invalid item
        except _WrongValue as error:
            error.path.append(f"[{len(known)}]")
            raise
        return tuple(known)

    return read


def _tuple_reader(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _WrongValue
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _mapping_reader(key_reader: Reader, reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _WrongValue
        try:
            return {key_reader(key): reader(item) for key, item in value.items()}
        except _WrongValue as error:
            error.path.append(".*")  # the key may be any text
            raise

    return read


def _union_reader(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        wrong = []
        for reader in readers:
            try:
                return reader(value)
            except _WrongValue as error:
                wrong.append(error)
        raise wrong[0]

    return read


def _tested(reader: Reader, test: Test) -> Reader:
    def read(value: Any) -> Any:
        known = reader(value)
        if not test(known):
            raise _WrongValue
        return known

    return read


def _scalar_reader(is_of_type: Test, test: Test = lambda _: True) -> Reader:
    def read(value: Any) -> Any:
        if is_of_type(value) and test(value):
            return value
        raise _WrongValue

    return read


def _is_str(value: Any) -> bool:
    return type(value) is str


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST  # True is an int to Python


def _is_finite(value: Any) -> bool:
    return math.isfinite(value) if type(value) is float else _is_int(value)


_TESTS: Mapping[Any, Test] = {
    str: _is_str,
    bool: lambda value: type(value) is bool,
    int: _is_int,
    float: _is_finite,
    AnyFloat: lambda value: type(value) is float or _is_int(value),
    NoneType: lambda value: value is None,
    Any: lambda value: True,
}
"""Tests for scalar types."""
