"""How long a host may take for the answer to each operation of the node program."""

from __future__ import annotations

from collections.abc import Mapping

ANSWER_LIMIT = 30.0
"""Seconds for an answer to any operation that is not in LIMITS, even if the host answers every PING."""

LIMITS: Mapping[str, float] = {
    # until the answer; each exceeds the sum of the limits of its parts in the node program
    "probe": 180.0,  # 60 s for `setup` and the python
    "find_image": 120.0,  # 20 s for each engine
    "gpus": 60.0,  # 30 s of nvidia-smi
    "dial": 300.0,  # bandwidth and latency to every target
    "prepare": 300.0,  # copies the code, removes unused code
    "start": 120.0,
    "rejoin": 60.0,  # ends processes, waits for a shared disk and for the guard
    "abort": 60.0,
    "force": 60.0,
    "stale": 120.0,
    "stop": 60.0,  # after grace and lease: the guard's record, the sweep
    "finished": 120.0,  # looks at every file
    "prune": 300.0,  # many files on a slow disk
    "outputs": 120.0,  # looks at every file
    "output_folders": 120.0,
    "notify": 180.0,  # 10 s of the webhook, 60 s of mail, 60 s of the command
    "remove_outputs": 600.0,  # millions of files on a slow disk
    "unpack": 300.0,  # after the upload, which `Pipe.send` limits
    # until the next DATA; the node program sends some every 15 s, even if the run prints nothing
    "take_image": 60.0,
    "attach": 60.0,
    "shell": 60.0,
    "send": 60.0,
}
"""Seconds. A `stop` gets its grace and lease in addition."""

WAITS_FOR_FILES = "a file server or a disk (try `df` there)"
WAITS_FOR: Mapping[str, str] = {
    "probe": f"`setup`, python, {WAITS_FOR_FILES}",
    "dial": "the network between the hosts",
    "gpus": "the NVIDIA driver (try `nvidia-smi` there)",
    "start": "its guard",
    "stop": f"processes that hang in the kernel, {WAITS_FOR_FILES}",
    "notify": "the webhook, the mail server or the command",
}
"""By operation, what a host that answers every PING may be waiting for. Others use files only."""
