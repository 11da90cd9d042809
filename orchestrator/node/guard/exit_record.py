"""Write how a run ended on this host: exit.json in its folder, and a line in the ledger. Its memory is freed first."""

import time
from typing import Any, Dict, List, Optional

from ..host import ledger, memory_folder, state


def write(
    folder: str,
    spec: Dict[str, Any],
    verdict: Dict[str, Any],
    outcome: Optional[Dict[str, Any]],
    failures: List[Dict[str, Any]],
) -> None:
    """`outcome` and `failures`: of the processes of this host. Raises OSError."""
    memory_folder.remove(spec)  # before the end is seen: the next run may need the memory
    record = {"verdict": verdict, "node": spec["node"], "outcome": outcome, "failures": failures, "at": time.time()}
    state.write_last(folder, record)
    ledger.add(folder, record, spec)
