"""Files that cannot be read, or written: those that torch.load refuses, and those on a read-only disk. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ..scene import Scene
from ..suspects import Suspect, Suspects, map_code

REFUSED = re.compile(r"Weights only load failed|Unsupported (?:global|class): GLOBAL")
OTHER_OBJECTS = re.compile(r"Unsupported (?:global|class): GLOBAL|add_safe_globals")
OF_MODEL = re.compile(
    r"(?i)torch/(?:serialization|distributed/checkpoint)|safetensors|checkpoint|ckpt|weights?\b|\.pth?\b"
)
OF_DATA = re.compile(r"(?i)zipfile|zip file|parquet|tarfile")
REFUSES = "torch.load reads only tensors and plain values (weights_only=True), and this file has other Python objects."
ALLOW = (
    "If you trust the file, pass weights_only=False to torch.load. Or name its classes in "
    "torch.serialization.add_safe_globals, or save only state_dicts."
)
NO_CHECKPOINT = (
    "torch.load with weights_only=True cannot read this file: it has other Python objects, is damaged, or is no "
    "checkpoint."
)
LOOK = (
    "Look at its beginning (head -c 100 FILE): a web page or a Git LFS pointer is a failed download. If you trust the "
    "file, pass weights_only=False."
)
NO_BEGINNING = re.compile(r"invalid load key|HeaderToo(?:Large|Small)|InvalidHeader")
LOOK_FIRST = (
    "Look at its beginning (head -c 100 FILE): a web page or a Git LFS pointer (`git lfs pull`) is a failed download. "
    "If it is a checkpoint of this run, use the previous one, and write checkpoints to a temporary name, then rename."
)
DATA = "A file that the script reads is truncated, empty, or of another kind."
COPY_AGAIN = (
    "Download or copy it again, and look at its beginning (head -c 100 FILE): it may be a web page or a Git LFS "
    "pointer. If several ranks write it, let one do so, and the others wait in a barrier."
)
READ_ONLY = "The script writes to a file system that is mounted read-only on this host."
WRITE_ELSEWHERE = (
    "Write to $DDP_ORCH_OUTPUT_DIR, or to another folder that is writable. If this one was writable before, its disk "
    "may be failing: `dmesg` on the host tells."
)


def explain_read_only(suspects: Suspects, scene: Scene) -> Suspects:
    """What could not be written because of the mount, not of the owner. It changes only words."""

    def explain(suspect: Suspect) -> Suspect:
        text = suspect.exception.text if suspect.exception else suspect.line.text
        return replace(suspect, meaning=READ_ONLY, fix=WRITE_ELSEWHERE) if "Read-only file system" in text else suspect

    return map_code(suspects, "file-permission-denied", explain)


def find_unreadable_file(suspects: Suspects, scene: Scene) -> Suspects:
    """What torch.load refuses to read, and an archive or a table of data. It changes the code of the first only."""
    for code in ("checkpoint-corrupt", "checkpoint-mismatch"):
        suspects = map_code(suspects, code, _explain)
    return suspects


def _explain(suspect: Suspect) -> Suspect:
    exception = suspect.exception
    if exception is None or suspect.meaning:
        return suspect
    sources = (*exception.chain, exception)
    text = "\n".join(line for source in sources for line in source.lines)
    if REFUSED.search(text):
        if OTHER_OBJECTS.search(text):
            return replace(suspect, code="checkpoint-mismatch", meaning=REFUSES, fix=ALLOW)
        return replace(suspect, meaning=NO_CHECKPOINT, fix=LOOK)
    if suspect.code == "checkpoint-corrupt" and NO_BEGINNING.search(text):
        return replace(suspect, fix=LOOK_FIRST)
    frames = "\n".join(frame for source in sources for frame in source.frames)
    if suspect.code == "checkpoint-corrupt" and OF_DATA.search(text) and not OF_MODEL.search(f"{text}\n{frames}"):
        return replace(suspect, meaning=DATA, fix=COPY_AGAIN)
    return suspect
