"""What a host shows `ps` of the whole run, which its own processes do not tell: gang.json. A full disk is no error."""

import contextlib
import os
from typing import Any, Dict, Optional, Sequence

from ..host import state

NAME = "gang.json"


def show(folder: str, label: Optional[str], leadership: Dict[str, int], added: Sequence[Dict[str, Any]] = ()) -> None:
    """`leadership`: `head epoch` of a run that can elect another head. `added`: host and nproc of hosts added to it."""
    record: Dict[str, Any] = dict(leadership)
    record.update({"label": label} if label is not None else {}, **({"added": list(added)} if added else {}))
    with contextlib.suppress(OSError):
        if record:
            state.replace(os.path.join(folder, NAME), record)
        else:
            os.unlink(os.path.join(folder, NAME))
