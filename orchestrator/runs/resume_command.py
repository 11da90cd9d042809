"""Change the command that starts a run again, so that all hosts find the snapshot that only some have. No IO."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..answers.attach import StrayOutputs
from ..answers.runs import Part
from ..output.console import fold
from ..output.terminal import one_line

TRAINER = "-m trainer"
"""The bundled trainer: rank 0 sends its snapshot to the others."""
SNAPSHOT = re.compile(r"(?i)\.(?:pt|pth|ckpt|bin|safetensors|distcp)$|ckpt|checkpoint|snapshot")
"""The names that node/host/beside_code.py takes for snapshots."""
HEAD = "--set run.resume=head"


@dataclass(frozen=True)
class Resume:
    """How a run can be started again."""

    command: str
    note: str = ""
    """What to know of it, after its purpose."""


@dataclass(frozen=True)
class Obstacle:
    """What the diagnosis of a run says of a start from its snapshot."""

    is_missing: bool = False
    """Some hosts lack the snapshot of others."""
    removal: Mapping[str, str] = field(default_factory=dict)
    """The commands that put damaged snapshots out of the way first, each with its purpose."""


def choose(resume: str, parts: Mapping[str, Part], silent: Collection[str]) -> Resume:
    """`resume`: the command; `silent`: hosts of the run that have not answered."""
    ranks = {host: part for host, part in parts.items() if part.node_rank is not None and not part.is_witness}
    saved = [host for host, part in ranks.items() if part.outputs]
    copies = any(part.resume != "none" or part.shared_output or part.script == TRAINER for part in ranks.values())
    if not resume or copies or len(saved) != 1 or len(ranks) + len(silent) < 2:
        return Resume(resume)
    if len(ranks) == 1:
        return Resume(resume, f"if only rank 0 saves, add {HEAD}")
    return Resume(with_snapshot_of_head(resume), f"only {saved[0]} has outputs")


def with_snapshot_of_head(resume: str) -> str:
    """The same command, with what makes all ranks load the snapshot of the head."""
    command, words, arguments = resume.partition(" -- ")
    return f"{command} {HEAD}{words}{arguments}"


def beside_code(stray: Mapping[str, StrayOutputs], parts: Mapping[str, Part]) -> str:
    """That only some hosts have a snapshot beside the code, which nothing copies; "" if that is not so."""
    having = {host: names for host, files in stray.items() if (names := list(filter(SNAPSHOT.search, files.files)))}
    lacking = [host for host, part in parts.items() if part.node_rank is not None and host not in having]
    if not having or not lacking:
        return ""
    (file, *_) = having[min(having)]
    return f"only {fold(having)} {'has' if len(having) == 1 else 'have'} {one_line(file)}"
