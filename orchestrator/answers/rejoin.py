"""What hosts say when one of them takes part in a run again. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from .operation import Arguments, Nothing, Operation

Key = Annotated[str, re.compile(r"[0-9a-f]{64}").fullmatch]


@dataclass(frozen=True)
class Private:
    """What guards have in memory only. It is sent on to other hosts of the run, and never shown."""

    secrets: Mapping[str, str] = field(repr=False)
    key: Key = field(repr=False)
    notify: Mapping[str, Any] = field(repr=False)
    elects: bool = False
    """Whether any host may become the head."""

    def as_arguments(self, *, may_notify: bool) -> Arguments:
        notify = dict(self.notify) if may_notify or self.elects else {}
        return {"secrets": dict(self.secrets), "key": self.key, "notify": notify, "elects": self.elects}


@dataclass(frozen=True)
class Ticket:
    """The answer to `ticket`."""

    private: Private


TICKET = Operation("ticket", Ticket)
REJOIN = Operation("rejoin", Nothing)
