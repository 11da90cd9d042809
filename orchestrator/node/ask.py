"""A program of the host is asked something: what it printed, or nothing."""

import subprocess
from typing import List


def output_of(argv: List[str], window: float) -> str:
    """Its stdout; empty where it is not there, or has not ended within `window` seconds. Whatever its exit status."""
    try:
        answer = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=window,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode("utf-8", "backslashreplace")
