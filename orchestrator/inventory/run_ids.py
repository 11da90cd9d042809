"""What runs are called: the ids that we make, and the names that people give."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")
PART_OF_ID = re.compile(r"[0-9a-f-]{4,20}")  # such a name may be a part of an id
SUFFIX = 4  # characters of an id's end that name a run too: they differ where the day is the same
_TIME = "%Y%m%d-%H%M%S"  # UTC
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def new_run_id() -> str:
    return f"{datetime.now(timezone.utc):{_TIME}}-{secrets.token_hex(2)}"


def made_at(run_id: str) -> float | None:
    """When an id was made, in seconds since 1970; None: it contains no date."""
    try:
        return datetime.strptime(run_id[: -SUFFIX - 1], _TIME).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
