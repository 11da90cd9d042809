"""The output of a program without what differs between two runs of it: times, pids, speeds, addresses. No IO."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Applied in this order.
MASKS = (
    (r"0x[0-9a-f]{6,}", "0x..."),
    (r"/tmp/(?!scripts)[\w.-]+", "/tmp/..."),
    (r"(?<![\w.])[WEI]?\d{4} \d\d:\d\d:\d\d\.\d+ \d+(?= )", "DATE PID"),
    (r"\d{4}-\d\d-\d\d|\d\d/\d\d/\d{4}|(?<=\b[WEI])\d{4}(?= \d\d:)|\w{3} \w{3} +\d+(?= \d\d:)", "DATE"),
    (r"\d+:\d\d(:\d\d)?([.,]\d+)?(?=\D|$)", "TIME"),
    (r" *(\d+(\.\d+)?|\?)s/it\b", " SPEED"),  # so tqdm writes one that is below 1 it/s
    (r"\d+(\.\d+)?(e-\d+)? ?(ms|us|s|sec|secs|seconds|s/epoch)\b", "SPAN"),
    (r" *(\d+(\.\d+)?|\?) ?(it|B|kB|MB|steps|examples|samples|batch(es)?|tok(ens)?)/s(ec)?\b", " SPEED"),
    (r"(?i)(\b(pid|process)\b['\"]?[ =:#]+)\d+", r"\1PID"),
    (r"\b(127\.0\.0\.1|localhost|\[::1?\]):\d+", "ADDRESS"),
    (r"(?i)(\bport\b['\"]?[ =:]+['\"]?)\d+", r"\1PORT"),
    (r"[^\n]*\r(?!\n)", ""),  # of a progress bar, the last state
)
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n(?=[ \t]))*.*", re.MULTILINE)


def lines(outputs: Mapping[str, str], masks: Iterable[str], unordered: bool) -> list[str]:
    """`outputs`: by stream. `masks`: of this program. `unordered`: several processes write to a stream."""
    found = []
    for stream, text in sorted(outputs.items()):
        for pattern in masks:
            text = re.sub(pattern, "...", text)
        for pattern, masked in MASKS:
            text = re.sub(pattern, masked, text)
        own = [f"{stream}: {line.rstrip()}" for line in text.split("\n")]
        found += sorted(own) if unordered else own
    return found


def tracebacks(outputs: Mapping[str, str], masks: Iterable[str], unordered: bool) -> list[str]:
    masked = "\n".join(line.partition(": ")[2] for line in lines(outputs, masks, False))
    found = TRACEBACK.findall(re.sub(r"(?m)^\[rank\d+\]: ", "", masked))  # so begins each line of torch's hook
    return sorted(found) if unordered else found
