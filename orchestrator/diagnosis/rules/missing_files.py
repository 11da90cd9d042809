"""Missing files: on which hosts, and who wrote or removed them. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ..scene import Scene
from ..suspects import Suspect, Suspects, map_code

CODES = ("dataset-missing", "file-missing-on-host")
WRITTEN = re.compile(
    r"(?i)sav(?:ed|ing)|wr(?:ote|iting|itten)|creat(?:ed|ing)|dump(?:ed|ing)|cach(?:ed|ing)|built|building|prepared"
)
SHARED = re.compile(r"/(?:nfs|shared|share|mnt/nfs|lustre|gpfs|scratch|fsx|efs|beegfs|weka|cephfs)\w*/")
REMOVES = re.compile(r"\b(?:os\.(?:remove|unlink|rename|replace|rmdir)|shutil\.(?:rmtree|move)|\w+\.unlink)\(")
LAST_FRAME = 3  # lines, with Python's marks under the code
PATH = re.compile(r"['\"](/?[\w./ -]+)['\"]")


def check_written_files(suspects: Suspects, scene: Scene) -> Suspects:
    """A file that is missing on one rank, and that another one wrote, or removed at the same time.

    Before `check_sent_code`, which leaves alone what this rule has explained.
    """

    def check(suspect: Suspect) -> Suspect:
        match = PATH.search(suspect.line.text)
        if match is None or suspect.exception is None:
            return suspect
        if any(REMOVES.search(frame) for frame in suspect.exception.frames[-LAST_FRAME:]):
            why = "it removes or renames a file that another rank has removed or renamed at the same time"
            return replace(suspect, code="shared-fs-lag", confidence="medium", why=why)
        if not _is_written(match[1].rsplit("/", 1)[-1], suspect, scene):
            return suspect
        if SHARED.search(match[1]) or len(scene.hosts) < 2:
            return replace(suspect, code="shared-fs-lag", confidence="medium", why="another rank had just written it")
        return replace(suspect, code="file-missing-on-host", why="another host wrote it, to a disk of its own")

    for code in CODES:
        suspects = map_code(suspects, code, check)
    return suspects


def _is_written(name: str, suspect: Suspect, scene: Scene) -> bool:
    """Whether another line says that the file was written."""
    return name != "" and any(
        line.number != suspect.line.number
        and name in line.text
        and WRITTEN.search(line.text) is not None
        and "Error" not in line.text
        for line in scene.lines
    )


def check_sent_code(suspects: Suspects, scene: Scene) -> Suspects:
    """ddp-orch sent the same code to all hosts: none has another version, and what it lacks is missing on all.

    Files that ranks write next to the code are another matter: they are on the host of the rank. Last, as it settles
    what `check_written_files` and the signatures that compare hosts left open.
    """
    if not scene.record.same_code:
        return suspects

    def check(suspect: Suspect) -> Suspect:
        match = PATH.search(suspect.line.text)
        if match is None or match[1].startswith("/") or suspect.why:
            return suspect
        why = "a relative path: not sent with the code, or written on another host"
        # rank 0 rarely reads what other ranks write
        code = "dataset-missing" if suspect.rank == 0 else suspect.code
        return replace(suspect, code=code, confidence="medium", why=why)

    suspects = tuple(suspect for suspect in suspects if suspect.code != "code-version-skew")
    for code in CODES:
        suspects = map_code(suspects, code, check)
    return suspects
