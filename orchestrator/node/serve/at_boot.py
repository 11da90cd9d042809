"""`autostart RUN`: cron or systemd starts it when this host is booted, so that the host rejoins a run."""

import os
import sys
import time

from ..guard import autostart
from ..host import state
from . import rejoin
from .wire import Refused

RETRY = 2.0  # s between tries: the network may come up, and disks may be mounted, after this
LEAST_WINDOW = 120.0  # s for the host to become ready


def main(run_id: str) -> int:
    """Verb `autostart RUN`: see guard/autostart.py. What it prints goes where cron or systemd sends it."""
    folder = state.run_folder(run_id)
    record = state.read(os.path.join(folder, autostart.RECORD))
    spec = state.read(os.path.join(folder, "spec.json"))
    if record is None or spec is None or state.is_over(folder):
        autostart.remove(folder)
        return 0
    base = state.base()
    os.environ.clear()
    os.environ.update(record["environment"], DDP_ORCH_STATE_DIR=base)
    os.chdir(os.path.expanduser("~"))
    deadline = time.monotonic() + max(LEAST_WINDOW, float(spec["rejoin_timeout"]))
    while True:
        try:
            rejoin.rejoin({"run_id": run_id, "private": record["private"]})
            return 0
        except Refused as error:
            if error.code == "guarded":
                return 0
            if error.code in ("over", "no-such-run"):
                autostart.remove(folder)
                return 0
            if time.monotonic() > deadline:
                autostart.remove(folder)  # the other hosts wait no longer, either
                sys.stderr.write("ddp-orch: run %s is not rejoined: %s\n" % (run_id, error))
                return 1
        time.sleep(RETRY)


def clean() -> None:
    """Remove what would rejoin runs that are over or gone."""
    known = dict(state.runs())
    autostart.forget(*(run for run in autostart.run_ids() if run not in known or state.is_over(known[run])))
