"""Signs of causes: where the signatures that are known match what is seen. Judges nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import causes, dumps, hangs, stacks
from .causes import Knowledge, Signature
from .exits import Exit
from .hangs import Confidence
from .scene import Scene
from .tracebacks import Raised
from .transcript import Said

# levels of precedence
DECISIVE = 90  # the kernel, the hardware, the scheduler or ssh say it: whatever the order
SPECIFIC = 50  # an error that names itself: the first one counts
ENDING = 30  # a process that ended, a hang: the first one counts
FALLBACK = 10  # what others say of a failure that is not to be seen
MOST_KINDS = 12_000  # of lines that are tried, the first and the last of them
STARTUP = 20_000  # lines in which versions and settings are told
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+\.\d+|\d{4,}")  # short ones may be a status or the number of a signal
# a logger's own word that a line is no error, and settings that are printed
HARMLESS = re.compile(
    r"^\W{0,2}(?:[\w.:/-]+ ){0,3}\W?(?:INFO|DEBUG|info|debug)\b|^\s*(?:\w+\()?[\w.\" ]+['\"]?[:=] ?[\[{'\"]"
)
CAUTION = re.compile(r"^\W{0,2}(?:[\w.:/-]+ ){0,3}\W?(?:WARN(?:ING)?|[Ww]arning)\b|\w+Warning: ")
TROUBLED = re.compile(r"(?i)error|fail|timed out|exception")
AGENTS = re.compile(r"closing signal|exitcode|local_rank|ChildFailedError|torch[./]distributed[./]elastic|srun: error")


@dataclass(frozen=True)
class Suspect:
    """One sign of one cause, somewhere."""

    code: str
    level: int
    line: Said
    rank: int | None
    host: str | None
    confidence: Confidence = "high"
    why: str = ""
    raised: Raised | None = None
    hint: bool = False
    explains: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Other hosts that show the same."""


def find(seen: Scene, knowledge: Knowledge) -> tuple[list[Suspect], list[Suspect]]:
    """All signs of causes, and those of consequences."""
    primary: list[Suspect] = []
    secondary: list[Suspect] = []
    covered: set[int] = set()  # lines that belong to an exception
    quoted: set[int] = set()  # lines of source code in its traceback
    for raised in seen.raised:
        covered |= set(range(raised.line.number, raised.line.number + raised.text.count("\n") + 1))
        quoted |= {number for one in (*raised.chain, raised) for number in one.code}
        found = list(_of_exception(raised, seen, knowledge))
        primary += found
        if not found or all(one.level < SPECIFIC for one in found):
            secondary.append(suspect_of("consequence", 0, raised.line, seen, raised=raised))
    for line in _troubled(seen, knowledge):
        if line.number in quoted:
            continue
        for code, signature in _matches(line.text, "line", knowledge):
            if line.number in covered and any(one.code == code and one.line.number == line.number for one in primary):
                continue
            primary += _accepted(code, signature, line, seen)
        if line.number not in covered and knowledge.consequences.search(line.text):
            secondary.append(suspect_of("consequence", 0, line, seen))
    primary += _of_exits(seen, knowledge, primary)
    primary += _comparisons(seen, knowledge)
    hang = hangs.judge(seen.lines, seen.raised, seen.exits, seen.ranks)
    if hang is not None:
        level = ENDING + 5 if hang.confidence != "low" else 22
        primary.append(Suspect(hang.code, level, hang.line, hang.rank, hang.host, hang.confidence, hang.message))
    primary += _last_words(seen, knowledge)
    return primary, secondary


def _troubled(seen: Scene, knowledge: Knowledge) -> list[Said]:
    """Lines that match anything. Most of a log are the same few lines with other numbers: each kind is tried once."""
    kinds: dict[str, list[Said]] = {}
    for line in seen.lines:
        kinds.setdefault(NUMBERS.sub("0", line.text), []).append(line)
    tried = list(kinds.values())
    tried = tried if len(tried) <= MOST_KINDS else tried[: MOST_KINDS // 4] + tried[-MOST_KINDS * 3 // 4 :]
    found = []
    for lines in tried:
        text = lines[0].text
        if knowledge.consequences.search(text) or next(_matches(text, "line", knowledge), None) is not None:
            found += lines
    return sorted(found, key=lambda line: line.number)


def _matches(text: str, where: str, knowledge: Knowledge) -> Iterator[tuple[str, Signature]]:
    if where == "line" and knowledge.noise.search(text):
        return
    informs = where == "line" and "NCCL INFO" in text
    for cause in knowledge.causes.values():
        for signature in cause.signatures:
            if signature.where != where or (informs and not signature.hint) or not signature.pattern.search(text):
                continue
            if signature.unless is None or not signature.unless.search(text):
                yield cause.code, signature


def suspect_of(code: str, level: int, line: Said, seen: Scene, **more: Any) -> Suspect:
    rank = line.rank
    if rank is None and not line.agent and level < DECISIVE and not AGENTS.search(line.text):
        rank = seen.lone.get(line.source)
    return Suspect(code, level, line, rank, seen.host(line), **more)


def _accepted(
    code: str, signature: Signature, line: Said, seen: Scene, raised: Raised | None = None
) -> Iterator[Suspect]:
    if signature.needs is not None and not signature.needs.search(seen.text):
        return
    if signature.late and (seen.first_step is None or seen.first_step > line.number):
        return
    if signature.spread == "some" and not _some(signature, line, seen):
        return
    match = signature.pattern.search(line.text)
    named = {key: value for key, value in (match.groupdict() if match else {}).items() if value}
    suspect = suspect_of(
        code, signature.level, line, seen, raised=raised, hint=signature.hint, explains=signature.explains
    )
    if raised is None and signature.level < DECISIVE and not line.agent and "NCCL" not in line.text:
        harmless = HARMLESS.search(line.text) is not None
        if harmless and not signature.hint and not TROUBLED.search(line.text):
            suspect = replace(suspect, level=min(suspect.level, ENDING + 1), hint=True)
        elif harmless or CAUTION.search(line.text):
            suspect = replace(suspect, level=min(suspect.level, SPECIFIC - 1))
    host = named.get("host") or named.get("host2")
    rank_ = int(named["rank"]) if named.get("rank", "").isdigit() else suspect.rank
    yield replace(
        suspect, host=host or suspect.host, rank=rank_, confidence="medium" if suspect.hint else signature.confidence
    )


def _some(signature: Signature, line: Said, seen: Scene) -> bool:
    """On some hosts, while others have worker output and not this."""
    knowledge = causes.load()
    places = set(seen.hosts) if len(seen.hosts) > 1 else {host for host in seen.ranks.values() if host}
    if len(places) < 2:
        return False
    hit = {
        seen.host(one) or (one.source if len(seen.hosts) > 1 else None)
        for one in seen.lines
        if signature.pattern.search(one.text) and not knowledge.noise.search(one.text)
    }
    for one in seen.raised:
        if signature.where == "exception" and any(signature.pattern.search(text) for text in one.lines):
            hit.add(seen.host(one.line) or (one.line.source if len(seen.hosts) > 1 else None))
    if None in hit:  # nobody says whose it is; others that lost their peers had come further
        return any(not one.agent and knowledge.consequences.search(one.lines[0]) for one in seen.raised)
    return bool(hit) and bool(places - hit)


def _of_exception(raised: Raised, seen: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """The signs in an exception and in those that led to it; the generic one only where nothing else is known."""
    if raised.agent and raised.kind.endswith(("ChildFailedError", "SignalException", "CalledProcessError")):
        return
    caught = seen.goes_on(raised)
    found: list[Suspect] = []
    if _far_end(raised, knowledge):
        return
    for one in raised.sources:
        texts = [text for text in one.lines if text.strip() not in (":", "")]
        texts = texts[:1] if one.own_words else texts
        for text in texts[:4] + texts[-4:] if len(texts) > 8 else texts:
            for where in ("exception", "line"):
                for code, signature in _matches(text, where, knowledge):
                    if code != "script-exception" and _raised_there(signature, one):
                        found += _accepted(code, signature, replace(raised.line, text=text), seen, raised)
        if any(one.level >= SPECIFIC for one in found):
            break
    if not any(one.level >= SPECIFIC for one in found):
        if raised.agent and REFUSAL.search(raised.kind) and not _of_peers(raised, knowledge):
            why = "the launcher itself refuses to start"
            yield suspect_of(
                "script-bad-argument", SPECIFIC, raised.line, seen, raised=raised, confidence="medium", why=why
            )
            return
        if raised.agent or _of_peers(raised, knowledge):
            yield from found
            return
        if raised.kind.endswith(("SystemExit", "KeyboardInterrupt")):
            yield from found
            return
        found.append(suspect_of("script-exception", SPECIFIC, raised.line, seen, raised=raised))
    if raised.thread and raised.line.rank is None:  # threads' exceptions bear no rank, and are seldom the first to end
        found = [replace(suspect, rank=None) for suspect in found]
    for suspect in found:
        yield replace(suspect, level=min(suspect.level, ENDING + 1), hint=True, confidence="low") if caught else suspect


LAST_PLACES = 3


def _raised_there(signature: Signature, raised: Raised) -> bool:
    places = [frame for frame in raised.frames if frame.startswith('File "')]
    if signature.outside is not None and any(map(signature.outside.search, places)):
        return False
    return signature.within is None or any(map(signature.within.search, places[-LAST_PLACES:]))


# of a launcher: what it raises of its own settings; of its workers and of others it has kinds of its own
REFUSAL = re.compile(r"^(?:ValueError|TypeError|KeyError|AssertionError|NotImplementedError)$")
BROKEN = re.compile(r"EOFError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|FileNotFoundError")


def _of_peers(raised: Raised, knowledge: Knowledge) -> bool:
    """Whether an exception only says that another process has gone."""
    # what is passed on is what the first one says; what fails while another is handled may be either
    every = (*raised.chain, raised) if raised.during or not raised.chain else raised.chain[:1]
    return any(knowledge.consequences.search(text) for one in every for text in one.lines)


def _far_end(raised: Raised, knowledge: Knowledge) -> bool:
    return BROKEN.search(raised.kind) is not None and any(map(knowledge.peers.search, raised.frames[-4:]))


def _of_exits(seen: Scene, knowledge: Knowledge, found: Sequence[Suspect]) -> Iterator[Suspect]:
    escalated = {int(match[1]) for match in hangs.STUCK.finditer(seen.text)}
    for one in seen.exits:
        number = one.signal
        if number is None or one.agent or one.pid in escalated or one.line is None:
            continue
        if one.rank is None and any(each.rank is not None and each.signal == number for each in seen.exits):
            continue  # told twice: by a shell, and by the launcher, who knows whose it is
        excused = any(each.rank == one.rank or each.host == one.host for each in found if each.level >= SPECIFIC)
        if number == 6 and (excused or complains(seen, one, knowledge)):
            continue
        for cause in knowledge.causes.values():
            if number in cause.exits:
                line = replace(one.line, at=one.at)
                certain: Confidence = "high" if number in (11, 7, 4, 13) else "medium"
                yield Suspect(cause.code, cause.exits[number], line, one.rank, one.host, certain, f"signal {number}")


def complains(seen: Scene, one: Exit, knowledge: Knowledge) -> bool:
    """Whether a rank (or, if it has no lines of its own, its host) complained of others before it ended."""
    # what bears its rank was said before its end, wherever it stands: the logs of several streams are often joined
    own = [line for line in seen.lines if line.rank == one.rank and line.rank is not None]
    before = [line for line in seen.lines if one.number < 0 or line.number < one.number]
    if not own and one.line is not None:
        here = (one.line.source, one.host)
        own = [line for line in before if (line.source, line.host or one.host) == here]
        own = [line for line in own if line.rank is None or one.rank is None]
    return any(
        knowledge.consequences.search(line.text) and not line.agent and not AGENTS.search(line.text) for line in own
    )


def of_dumps(dumps_: Sequence[Mapping[str, Any]], seen: Scene) -> list[Suspect]:
    judged = dumps.judge(dumps_)
    if judged is None:
        return []
    host = seen.ranks.get(judged.rank) if judged.rank is not None else None
    line = Said(len(seen.lines), host or "", host, judged.rank, None, "\n".join(judged.evidence))
    return [Suspect(judged.code, 36, line, judged.rank, host, "medium", judged.why)]


def of_stacks(found: Sequence[stacks.Stack], seen: Scene) -> list[Suspect]:
    judged = stacks.judge(found)
    if judged is None:
        return []
    what, line = judged
    line = replace(line, text="\n".join(what.evidence))
    if what.rank is None:
        return [Suspect(what.code, 22, line, None, None, "low", what.why)]
    return [Suspect(what.code, 36, line, what.rank, line.host, "medium", what.why)]


def _comparisons(seen: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """What must be equal on all hosts and is not, or must differ and does not."""
    if len(seen.hosts) < 2:
        return
    for cause in knowledge.causes.values():
        for signature in cause.signatures:
            if signature.where not in ("differs", "same"):
                continue
            values: dict[str, tuple[str, Said]] = {}
            for line in seen.lines[:STARTUP]:
                if match := signature.pattern.search(line.text):
                    value = match.groupdict().get("value") or match[1]
                    values.setdefault(line.host or line.source, (value, line))
            distinct = {value for value, _ in values.values()}
            if len(values) < 2:
                continue
            if (len(distinct) > 1) if signature.where == "differs" else (len(distinct) < len(values)):
                host, (_, line) = list(values.items())[-1]
                why = ", ".join(f"{name}: {value}" for name, (value, _) in values.items())
                more: dict[str, Any] = {"hint": signature.hint, "explains": signature.explains}
                yield Suspect(cause.code, signature.level, line, None, host, "medium", why, **more)


def _last_words(seen: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """What a process said last, before others spoke of its end."""
    last: dict[tuple[object, ...], Said] = {}
    for line in seen.lines:
        if not (line.agent or AGENTS.search(line.text) or knowledge.consequences.search(line.text)):
            last[line.source, line.host, line.rank] = line
    for line in last.values():
        for code, signature in _matches(line.text, "last", knowledge):
            yield from _accepted(code, signature, line, seen)
