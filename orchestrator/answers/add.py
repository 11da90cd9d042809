"""What the head of a run answers when a host is added to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from .fields import Address, HostName, NodeNumber, Nproc, Port
from .operation import Nothing, Operation, Streaming


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


@dataclass(frozen=True)
class Template:
    """The command and the variables of a run, before the names of run and host are filled in."""

    command: tuple[str, ...]
    """The arguments of python."""
    run_env: Mapping[str, str]
    """Those of the run; a host's own take precedence."""
    up_env: Mapping[str, str]
    """Those given to `up`, which take precedence."""


@dataclass(frozen=True)
class CodeOfRun:
    sha256: Annotated[str, _is_sha256]
    cwd: str
    """The folder inside the code in which the command runs."""


@dataclass(frozen=True)
class KnownNode:
    host: HostName
    nproc: Nproc
    spare: bool
    witness: bool = False
    added: bool = False
    """After the start of the run."""


@dataclass(frozen=True)
class LauncherOfRun:
    name: str
    scope: str
    """`host`: it is started once per host, and starts the ranks by itself."""


@dataclass(frozen=True)
class ContactOfHead:
    port: Port | None
    """Where it waits for the recorders of the other nodes; None: the run has one node."""


@dataclass(frozen=True)
class SpecOfHead:
    """What a host that is added must know of the run."""

    name: str
    nodes: tuple[KnownNode, ...]
    """Those that the head knew when it was prepared."""
    code: CodeOfRun | None
    """None: the head uses its `workdir`."""
    program: str
    """The path of the node program, whose name has its hash."""
    launcher: LauncherOfRun
    contact: ContactOfHead
    auto_env: Mapping[str, str]
    head_lost: str
    template: Template = Template((), {}, {})
    """Empty: the run was started by another version of ddp-orch, which is refused."""


@dataclass(frozen=True)
class StartOfRun:
    link_addresses: tuple[Address, ...]
    """Where the head waits for the recorders of the other nodes."""


@dataclass(frozen=True)
class Blueprint:
    """The answer to `blueprint`."""

    spec: SpecOfHead
    start: StartOfRun
    raw: Mapping[str, Any]
    """The same `spec`, with all keys: most are the same on every host."""


@dataclass(frozen=True)
class AddAnswer:
    """The answer to `add`."""

    node: NodeNumber | None
    """The number of the host; None: the run cannot take it."""


ADD = Operation("add", AddAnswer)
BLUEPRINT = Operation("blueprint", Blueprint)
CODE: Streaming[Nothing, None] = Streaming("code", Nothing, lambda header, payload: None)
