"""Stands in for torchrun: starts the ranks as it does, each in a session of its own, and keeps their exits to itself.

    stand_in_agent.py NPROC NODE_RANK COMMAND...        (as many ranks on every node)

On SIGTERM it hands the signal on to the groups of its ranks and waits for them, as torchrun does; so it does when one
has failed. In its exit barrier it ignores SIGTERM: with BARRIER=1 in the environment it stays there when its ranks have
ended.
"""

import os
import signal
import subprocess
import sys
import time

nproc, node_rank = map(int, sys.argv[1:3])
ranks = []
for local_rank in range(nproc):
    environment = {
        **os.environ,
        "LOCAL_RANK": str(local_rank),
        "RANK": str(node_rank * nproc + local_rank),
        "GROUP_RANK": str(node_rank),
    }
    ranks.append(subprocess.Popen(sys.argv[3:], env=environment, start_new_session=True))


def stop(*_: object) -> None:
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGTERM)


signal.signal(signal.SIGTERM, stop)
while not any(rank.poll() for rank in ranks) and any(rank.poll() is None for rank in ranks):
    time.sleep(0.1)  # torchrun looks at its ranks as often, and tells nobody until all have been stopped
if any(rank.poll() for rank in ranks):
    stop()
for rank in ranks:
    rank.wait()
if os.environ.get("BARRIER"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
sys.exit(1 if any(rank.returncode for rank in ranks) else 0)
