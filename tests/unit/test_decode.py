"""JSON becomes dataclasses by their type hints, or an error that names the path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from orchestrator.answers.decode import MAX_DEPTH, NOT_NULL, AnyFloat, MalformedAnswer, decode


@dataclass(frozen=True)
class Leaf:
    number: int
    name: Annotated[str, str.isalpha] | None = None


@dataclass(frozen=True)
class Other:
    kind: Literal["other"]


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str] = (0, "")
    sizes: Mapping[Annotated[str, str.isdigit], float] = field(default_factory=dict)
    either: Leaf | Other | None = None
    flag: bool = False
    loss: AnyFloat | None = None
    raw: Any = None
    sent: int | None = field(default=None, metadata=NOT_NULL)


def test_json_becomes_dataclasses_and_unknown_keys_are_ignored() -> None:
    value = {
        "leaves": [{"number": 1, "newer": {}}, {"number": 2, "name": "b"}],
        "pair": [3, "x"],
        "sizes": {"7": 1},
        "either": {"kind": "other"},
        "loss": float("nan"),
        "raw": {"a": [1]},
        "newer": [],
    }
    tree = decode(Tree, value, "tree")
    assert tree.leaves == (Leaf(1), Leaf(2, "b"))
    assert (tree.pair, tree.sizes, tree.either, tree.raw) == ((3, "x"), {"7": 1}, Other("other"), {"a": [1]})
    assert tree.loss != tree.loss
    assert decode(Tree, {"leaves": []}, "tree") == Tree(())


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], ""),
        ({}, ".leaves"),
        ({"leaves": {}}, ".leaves"),
        ({"leaves": [{"number": 1}, {}]}, ".leaves[1].number"),
        ({"leaves": [{"number": True}]}, ".leaves[0].number"),
        ({"leaves": [{"number": 1.0}]}, ".leaves[0].number"),
        ({"leaves": [{"number": 2**64 + 1}]}, ".leaves[0].number"),
        ({"leaves": [{"number": 1, "name": "7"}]}, ".leaves[0].name"),
        ({"leaves": [], "pair": [1]}, ".pair"),
        ({"leaves": [], "pair": [1, 2]}, ".pair"),
        ({"leaves": [], "sizes": {"x": 1}}, ".sizes.*"),
        ({"leaves": [], "sizes": {"1": float("inf")}}, ".sizes.*"),
        ({"leaves": [], "either": {"kind": "another"}}, ".either.number"),
        ({"leaves": [], "flag": 1}, ".flag"),
        ({"leaves": [], "loss": "1"}, ".loss"),
        ({"leaves": [], "sent": None}, ".sent"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(MalformedAnswer) as caught:
        decode(Tree, value, "tree")
    assert str(caught.value) == f"tree{path}"


def test_what_is_nested_too_deeply_is_refused() -> None:
    value: Any = None
    for _ in range(MAX_DEPTH):
        value = [value]
    with pytest.raises(MalformedAnswer, match="nested too deeply"):
        decode(Tree, {"leaves": [], "raw": value}, "tree")
    assert decode(Tree, {"leaves": [], "raw": value[0][0]}, "tree").raw == value[0][0]
