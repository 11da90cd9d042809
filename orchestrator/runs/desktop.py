"""Show a message on the desktop, with notify-send (Linux) or osascript (macOS). Without them, do nothing."""

from __future__ import annotations

import shutil
import subprocess

OSASCRIPT = ("on run argv", 'display notification (item 1 of argv) with title "ddp-orch"', "end run")


def show(text: str) -> None:
    """Does not wait: a desktop that hangs must not stop the log."""
    if program := shutil.which("notify-send"):
        words = [program, "--app-name=ddp-orch", "--", "ddp-orch", text]
    elif program := shutil.which("osascript"):
        words = [program, *(word for line in OSASCRIPT for word in ("-e", line)), text]
    else:
        return
    null = subprocess.DEVNULL
    try:
        subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
    except OSError:
        pass  # a message that cannot be shown is no error of the run
