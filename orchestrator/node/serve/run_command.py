"""Something of the host is asked, a program or its file systems: what it answers in time, or nothing."""

import subprocess
import threading
import time
from typing import Any, Callable, Dict, List


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


def answers_of(questions: Dict[str, Callable[[], Any]], window: float) -> Dict[str, Any]:
    """What the questions answer, asked side by side; those that have not within `window` seconds are left out.

    So are their threads: nothing ends a look at a network file system whose server is gone.
    """
    answers: Dict[str, Any] = {}
    bugs: List[BaseException] = []

    def ask(name: str, question: Callable[[], Any]) -> None:
        try:
            answers[name] = question()
        except BaseException as error:  # noqa: BLE001  raised below
            bugs.append(error)

    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + window
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if bugs:
        raise bugs[0]
    return dict(answers)  # a late answer must not change it
