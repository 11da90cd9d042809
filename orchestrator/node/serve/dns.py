"""Name resolution as programs on this host get it, timed. A thread whose resolver does not answer is abandoned."""

import queue
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

WINDOW = 1.0  # s for all names together: torch, asking for each peer, would wait far longer, and that is the finding
AT_ONCE = 16  # threads


def look(names: List[str], addresses: List[str]) -> Dict[str, Any]:
    """Own name, others' names and addresses -> {asked: {"found": [...], "error": text, "seconds": s}}.

    `seconds` is None where there was no answer within WINDOW.
    """
    questions: List[Tuple[str, Callable[[str], List[str]]]] = [(name, forward) for name in names]
    questions += [(address, reverse) for address in addresses]
    answers: "queue.Queue[Tuple[str, Dict[str, Any]]]" = queue.Queue()
    waiting: "queue.Queue[Tuple[str, Callable[[str], List[str]]]]" = queue.Queue()
    for question in questions:
        waiting.put(question)

    def work() -> None:
        while True:
            try:
                what, ask = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            results: List[str] = []
            error: Optional[str] = None
            try:
                results = ask(what)
            except OSError as failure:
                error = failure.strerror or str(failure)
            answers.put((what, {"found": results, "error": error, "seconds": round(time.monotonic() - began, 3)}))

    for _ in range(min(AT_ONCE, len(questions))):
        threading.Thread(target=work, daemon=True).start()
    results: Dict[str, Any] = {
        what: {"found": [], "error": "no answer within %.0f s" % WINDOW, "seconds": None} for what, _ in questions
    }
    deadline = time.monotonic() + WINDOW
    for _ in questions:
        try:
            what, result = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        results[what] = result
    return results


def forward(name: str) -> List[str]:
    # as bytes: of a text Python makes an IDNA name, with tables that take longer to load than most look-ups take
    addresses = socket.getaddrinfo(name.encode("ascii") if name.isascii() else name, None, 0, socket.SOCK_STREAM)
    return sorted({str(address[0]) for _, _, _, _, address in addresses})


def reverse(address: str) -> List[str]:
    return [socket.gethostbyaddr(address)[0]]


def servers(text: str) -> List[str]:
    """The name servers in the text of resolv.conf."""
    lines = [line.split() for line in text.splitlines()]
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
