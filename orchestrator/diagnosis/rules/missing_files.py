"""Missing files: on which hosts, and who wrote or removed them. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ..scene import Scene
from ..suspects import Suspect, Suspects, map_code
from ..tracebacks import INSTALLED, MARKS, LoggedException

CODES = ("dataset-missing", "file-missing-on-host")
WRITTEN = re.compile(
    r"(?i)sav(?:ed|ing)|wr(?:ote|iting|itten)|creat(?:ed|ing)|dump(?:ed|ing)|cach(?:ed|ing)|built|building|prepared"
)
SHARED = re.compile(r"/(?:nfs|shared|share|mnt/nfs|lustre|gpfs|scratch|fsx|efs|beegfs|weka|cephfs)\w*/")
REMOVES = re.compile(r"\b(?:os\.(?:remove|unlink|rename|replace|rmdir)|shutil\.(?:rmtree|move)|\w+\.unlink)\(")
LAST_FRAME = 3  # lines, with Python's marks under the code
PATH = re.compile(r"['\"](/?[\w./ -]+)['\"]")
NO_FOLDER = re.compile(
    r"Parent directory (?P<torch>.*?) does not exist|non-existent directory: '(?P<pandas>.*)'"
    r"|create file \(unable to open file: name = '(?P<h5py>.*?)', errno = 2\b"
    r"|Error while serializing: .*(?:No such file or directory|NotFound)"
)
"""What libraries say only of a file that they write."""
NOT_THERE = re.compile(r"FileNotFoundError: .*No such file or directory: .*?['\"](?P<path>[^'\"]*/[^'\"]*)['\"]$")
WRITES = re.compile(
    r"open\w*\(.*['\"][bt]?[wax][bt+]*['\"]|\bmode=['\"][wax]|\bO_CREAT\b|\.(?:mkdir|touch|tofile|symlink)\("
    r"|\b_mkstemp_inner\(|open_func\(self\.baseFilename"
)
"""Calls that make a file or a folder, as tracebacks show them."""
READS = re.compile(
    r"open\w*\(.*['\"][bt]?r[bt+]*['\"]|\bopen\((?!['\"][wax]\w*\+?['\"])[^,()]*\)|\b(?:makedirs|exist_ok)\b"
)
"""Calls that fail for another reason."""
WRITE_ELSEWHERE = (
    "or write to $DDP_ORCH_OUTPUT_DIR, which exists (in an argument: {output}). ddp-orch sends no empty folders with "
    "the code."
)


def find_missing_folder(suspects: Suspects, scene: Scene) -> Suspects:
    """A file that the script wants to write, in a folder that does not exist: no data are missing.

    Before `check_written_files`, as such a file may have been written on another host, which has the folder.
    """

    def check(suspect: Suspect) -> Suspect:
        folder = _missing_folder(suspect)
        if folder is None or folder.startswith("~"):
            return suspect
        name, call = (f": {folder}", f'os.makedirs("{folder}", exist_ok=True)') if folder else ("", "os.makedirs")
        fix = f"Call {call} before that, on each rank that writes there, {WRITE_ELSEWHERE}"
        meaning = f"The folder to which the script writes does not exist{name}."
        return replace(suspect, code="script-exception", confidence="high", why="", meaning=meaning, fix=fix)

    for code in (*CODES, "script-exception"):
        suspects = map_code(suspects, code, check)
    return suspects


def _missing_folder(suspect: Suspect) -> str | None:
    """The folder that is missing for a file to write; "": its name is unknown; None: it is another error."""
    exception = suspect.exception
    if exception is None:
        return None
    sources = (each for each in (*exception.chain, exception) if suspect.line.text in each.lines)
    source = next(sources, exception)
    text = source.lines[0] if suspect.code == "script-exception" else suspect.line.text
    if match := NO_FOLDER.search(text):
        return match["torch"] or match["pandas"] or (match["h5py"] or "").rpartition("/")[0]
    match = NOT_THERE.search(text)
    return match["path"].rstrip("/").rpartition("/")[0] or None if match and _is_written_there(source) else None


def _is_written_there(exception: LoggedException) -> bool:
    """Whether the call that failed, or the one of the script that led to it, writes a file."""
    place = ""
    calls: list[tuple[str, str]] = []
    for frame in exception.frames:
        if frame.startswith('File "'):
            place = frame
        elif not MARKS.fullmatch(frame):
            calls.append((place, frame))
    for place, code in reversed(calls):
        if WRITES.search(code) or READS.search(code):
            return READS.search(code) is None
        if not INSTALLED.search(place):
            return False
    return False


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
