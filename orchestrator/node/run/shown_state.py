"""What a host shows `ps` of the whole run, which its own processes do not tell: gang.json. A full disk is no error."""

import contextlib
import os
from typing import Dict, Optional

from ..host import state

NAME = "gang.json"


def show(folder: str, label: Optional[str], leadership: Dict[str, int]) -> None:
    """`leadership`: `head epoch` of a run that can elect another head."""
    record = dict(leadership) if label is None else dict(leadership, label=label)
    with contextlib.suppress(OSError):
        if record:
            state.replace(os.path.join(folder, NAME), record)
        else:
            os.unlink(os.path.join(folder, NAME))
