"""`autostart RUN`: cron starts it when this host is booted, so that the host rejoins a run. See run/autostart.py."""

import contextlib
import os
import sys
import time

from ..host import crontab, state
from ..run import autostart
from . import rejoin
from .wire import Refused

RETRY = 2.0  # s between tries: the network may come up, and disks may be mounted, after cron
LEAST_WINDOW = 120.0  # s for the host to become ready


def main(run_id: str) -> int:
    """Verb `autostart RUN`: cron starts it. What it prints goes where cron sends it."""
    folder = state.run_folder(run_id)
    record = state.read(os.path.join(folder, autostart.RECORD))
    spec = state.read(os.path.join(folder, "spec.json"))
    if record is None or spec is None or rejoin.is_over(folder):
        crontab.remove(run_id)
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
                crontab.remove(run_id)
                return 0
            if time.monotonic() > deadline:
                sys.stderr.write("ddp-orch: run %s is not rejoined: %s\n" % (run_id, error))
                return 1
        time.sleep(RETRY)


def clean() -> None:
    """Remove the lines of runs that are over or gone."""
    known = dict(state.runs())
    over = [run_id for run_id in crontab.run_ids() if run_id not in known or rejoin.is_over(known[run_id])]
    if over:
        with contextlib.suppress(crontab.Unusable):
            crontab.remove(*over)
