"""Whether a script with DistributedDataParallel gives each rank all of the data. Reads files, runs nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from . import python_files

_WRAPS, _LOADS = re.compile(r"\bDistributedDataParallel\b"), re.compile(r"\bDataLoader\(")
_MAY_SHARE = re.compile(
    r"sampler|iterable|shard|split|partition|chunk|scatter|subset|stride|islice|webdataset", re.IGNORECASE
)
_RANDOM, _SEED = re.compile(r"\brand(?:n|int)?\("), re.compile(r"\bmanual_seed\(")
_RANK = re.compile("rank", re.IGNORECASE)
_NO_DATA = {"print", "info", "debug", "warning", "int", "str", "getenv", "get", "barrier", "init_process_group"}
_NO_DATA |= {"set_device", "device", "to", "cuda", "DDP", "DistributedDataParallel"}
"""Functions that may get a rank, and choose no data by it."""
_OF_RANKS = {"gpu", "device", "is_main", "is_master"}
"""Variables that may have a value of a rank, besides those called so."""


def gives_all_data(script: Path, folder: Path) -> bool:
    """Only if nothing in the script and its own modules can choose data by the rank.

    Wherever a rank is used for more than devices, messages and conditions, it may.
    """
    texts = python_files.texts_with_plain_torch(script, folder)
    if texts is None:
        return False
    whole = "\n".join(texts)
    if not (_WRAPS.search(whole) and _LOADS.search(whole)) or _MAY_SHARE.search(whole):
        return False
    if _RANDOM.search(whole) and not _SEED.search(whole):
        return False  # each rank makes other data
    try:
        return not any(_uses_rank(ast.parse(text), False) for text in texts)
    except (SyntaxError, ValueError, RecursionError):
        return False  # starting the script reports it


def _uses_rank(node: ast.AST, is_fine: bool) -> bool:
    """Whether data may depend on a rank here. `is_fine`: the node itself may be a rank."""
    if _is_rank(node):
        return not is_fine
    match node:
        case ast.Compare(left=left, comparators=others):  # `number % world_size == rank` chooses
            return _any_uses((left, *others), any(isinstance(one, ast.Constant) for one in (left, *others)))
        case ast.Expr(value=value) | ast.Assert(test=value):
            return _uses_rank(value, True)
        case ast.If(test=test, body=body, orelse=[]) if not _gives_values(body):
            return _uses_rank(test, True) or _any_uses(body, False)
        case ast.If(test=test) | ast.IfExp(test=test) if any(map(_is_rank, ast.walk(test))):
            return True  # what it gives may be data
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return _any_uses(ast.iter_child_nodes(node), is_fine)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return _uses_rank(value, _RANK.search(name) is not None or name in _OF_RANKS)
        case ast.Call(func=function):
            return _call_uses_rank(node, function)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text.startswith("cuda"):
            return False
    return _any_uses(ast.iter_child_nodes(node), False)


def _gives_values(body: Iterable[ast.stmt]) -> bool:
    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return
    return any(isinstance(node, kinds) for one in body for node in ast.walk(one))


def _call_uses_rank(call: ast.Call, function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    is_fine = name in _NO_DATA
    if isinstance(function, ast.Attribute) and _uses_rank(function.value, False):
        return True
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if is_fine and isinstance(argument, ast.JoinedStr):
            continue
        parts = argument.elts if is_fine and isinstance(argument, ast.List) else [argument]
        if _any_uses(parts, is_fine):
            return True
    return False


def _any_uses(nodes: Iterable[ast.AST], is_fine: bool) -> bool:
    return any(_uses_rank(node, is_fine) for node in nodes)


def _is_rank(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return _RANK.search(name) is not None
        case ast.Call(func=ast.Name(id="int"), args=[argument]):
            return _is_rank(argument)
        case ast.Call(func=function, args=arguments):
            names = (one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, str))
            return _is_rank(function) or any(map(_RANK.search, names))
    return False
