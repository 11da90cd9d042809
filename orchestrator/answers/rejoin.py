"""What a host says when it takes part in a run again. Pure."""

from __future__ import annotations

from .operation import Nothing, Operation

REJOIN = Operation("rejoin", Nothing)
