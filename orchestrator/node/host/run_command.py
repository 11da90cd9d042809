"""Ask a program or a file system of the host something: what it answers in time, or nothing."""

import subprocess
import threading
import time
from typing import Any, Callable, Dict, List


def output_of(argv: List[str], window: float) -> str:
    """The stdout of a command; empty if it is missing, or takes longer than `window` seconds. Its status is ignored."""
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
    """The answers to the questions, asked in parallel. Those that take longer than `window` seconds are left out.

    Their threads are abandoned: a call into a network file system whose server is gone never returns.
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
