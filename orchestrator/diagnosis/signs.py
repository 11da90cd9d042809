"""Where known signatures match what the logs show: the suspects. It weighs nothing (see refine.py). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..output.finding import Confidence
from . import hangs
from .causes import Cause, Knowledge, Signature
from .exits import Exit
from .rules.hidden_modules import hiding_file
from .scene import Scene, host_or_source
from .shell_errors import missing_path
from .suspects import DECISIVE, ENDING, SPECIFIC, Suspect, Suspects
from .tracebacks import INSTALLED, OF_COMMAND, OF_LAUNCHER, TRIED, LoggedException
from .transcript import LogLine

HANG, UNSURE_HANG = ENDING + 5, 22  # levels
MAX_KINDS = 12_000  # of lines that are tried, the first and the last of them
STARTUP = 20_000  # lines in which versions and settings are printed
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+\.\d+|\d{4,}")  # short ones may be a status or the number of a signal
# a logger's own word that a line is no error, and settings that are printed
HARMLESS = re.compile(
    r"^\W{0,2}(?:[\w.:/-]+ ){0,3}\W?(?:INFO|DEBUG|info|debug)\b|^\s*(?:\w+\()?[\w.\" ]+['\"]?[:=] ?[\[{'\"]"
)
CAUTION = re.compile(r"^\W{0,2}(?:[\w.:/-]+ ){0,3}\W?(?:WARN(?:ING)?|[Ww]arning)\b|\w+Warning: ")
TROUBLED = re.compile(r"(?i)error|fail|timed out|exception")
AGENTS = re.compile(r"closing signal|exitcode|local_rank|ChildFailedError|torch[./]distributed[./]elastic|srun: error")
# exceptions that a launcher raises about its own settings; for failed workers it has classes of its own
REFUSAL = re.compile(r"^(?:ValueError|TypeError|KeyError|AssertionError|NotImplementedError)$")
BROKEN = re.compile(r"EOFError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|FileNotFoundError")
SERVICE = re.compile(r"(?:Connect\w*|Operational|Rpc)Error$")
OF_RANKS = re.compile(r"(?i)torch[/.]distributed|/(?:ray|multiprocessing|deepspeed|horovod)/|gloo|nccl|c10d|tcpstore")
ENDS = ("SystemExit", "KeyboardInterrupt")
MAX_LINES = 8  # of an exception's message that are tried: the first half and the last half
LAST_PLACES = 3  # frames
CRASHES = (11, 7, 4, 13)  # signals that no launcher sends
ABORTED = 6


def find_suspects(scene: Scene, knowledge: Knowledge) -> tuple[Suspects, Suspects]:
    """All signs of causes, and those of consequences."""
    suspects, consequences, quoted = _check_exceptions(scene, knowledge)
    more_suspects, more_consequences = _check_lines(scene, knowledge, suspects, quoted)
    suspects += more_suspects
    suspects += list(_check_exits(scene, knowledge, suspects))
    suspects += list(_compare_hosts(scene, knowledge))
    hang = hangs.diagnose_hang(scene.lines, scene.exceptions, scene.exits, scene.ranks)
    if hang is not None:
        level = HANG if hang.confidence != "low" else UNSURE_HANG
        suspects.append(Suspect(hang.code, level, hang.line, hang.rank, hang.host, hang.confidence, hang.message))
    suspects += list(_check_last_lines(scene, knowledge))
    return tuple(suspects), tuple(consequences + more_consequences)


def _check_exceptions(scene: Scene, knowledge: Knowledge) -> tuple[list[Suspect], list[Suspect], set[int]]:
    """Suspects, consequences, and the numbers of lines that only quote source code."""
    suspects: list[Suspect] = []
    consequences: list[Suspect] = []
    quoted: set[int] = set()
    for exception in scene.exceptions:
        quoted |= {number for each in (*exception.chain, exception) for number in each.code}
        own = list(_check_exception(exception, scene, knowledge))
        suspects += own
        if all(suspect.level < SPECIFIC for suspect in own):
            consequences.append(_suspect("consequence", 0, exception.line, scene, exception))
    return suspects, consequences, quoted


def _check_lines(
    scene: Scene, knowledge: Knowledge, before: Sequence[Suspect], quoted: set[int]
) -> tuple[list[Suspect], list[Suspect]]:
    """`before`: the suspects in exceptions, which the lines of their messages do not repeat."""
    suspects: list[Suspect] = []
    consequences: list[Suspect] = []
    in_exceptions: set[int] = set()
    for exception in scene.exceptions:
        first = exception.line.number
        in_exceptions |= set(range(first, first + exception.text.count("\n") + 1))
    known = {(suspect.code, suspect.line.number) for suspect in before}
    for line in _lines_of_interest(scene, knowledge):
        if line.number in quoted:
            continue
        for code, signature in _matches(line.text, "line", knowledge):
            if line.number in in_exceptions and (code, line.number) in known:
                continue
            accepted = list(_accept(code, signature, line, scene, knowledge))
            known |= {(code, line.number) for _ in accepted}
            suspects += accepted
        if line.number not in in_exceptions and knowledge.consequences.search(line.text):
            consequences.append(_suspect("consequence", 0, line, scene))
    return suspects, consequences


def _lines_of_interest(scene: Scene, knowledge: Knowledge) -> list[LogLine]:
    """Lines that match anything. Most of a log are the same few lines with other numbers: each kind is tried once."""
    kinds: dict[str, list[LogLine]] = {}
    for line in scene.lines:
        kinds.setdefault(NUMBERS.sub("0", line.text), []).append(line)
    tried = list(kinds.values())
    if len(tried) > MAX_KINDS:
        tried = tried[: MAX_KINDS // 4] + tried[-MAX_KINDS * 3 // 4 :]
    matched: list[LogLine] = []
    for lines in tried:
        text = lines[0].text
        if knowledge.consequences.search(text) or next(_matches(text, "line", knowledge), None) is not None:
            matched += lines
    return sorted(matched, key=lambda line: line.number)


# --- signatures


def _matches(text: str, where: str, knowledge: Knowledge) -> Iterator[tuple[str, Signature]]:
    """The signatures that match a text, and the codes of their causes."""
    if where == "line" and knowledge.noise.search(text):
        return
    informs = where == "line" and "NCCL INFO" in text
    for cause in knowledge.causes.values():
        for signature in cause.signatures:
            if signature.where != where or (informs and not signature.hint) or not signature.pattern.search(text):
                continue
            if signature.unless is None or not signature.unless.search(text):
                yield cause.code, signature


def _suspect(code: str, level: int, line: LogLine, scene: Scene, exception: LoggedException | None = None) -> Suspect:
    rank = line.rank
    if rank is None and not line.agent and level < DECISIVE and not AGENTS.search(line.text):
        rank = scene.failed_rank.get(line.source)
    return Suspect(code, level, line, rank, scene.host_of(line), exception=exception)


def _accept(
    code: str,
    signature: Signature,
    line: LogLine,
    scene: Scene,
    knowledge: Knowledge,
    exception: LoggedException | None = None,
) -> Iterator[Suspect]:
    """The suspect of a signature that matches, if what it asks of the rest of the logs is there too."""
    if signature.needs is not None and not signature.needs.search(scene.text):
        return
    if signature.late and (scene.first_step is None or scene.first_step > line.number):
        return
    if signature.spread == "some" and not _is_on_some_hosts(signature, scene, knowledge):
        return
    suspect = _suspect(code, signature.level, line, scene, exception)
    suspect = replace(suspect, hint=signature.hint, explains=signature.explains)
    if exception is None and signature.level < DECISIVE and not line.agent and "NCCL" not in line.text:
        suspect = _weigh_log_level(suspect)
    match = signature.pattern.search(line.text)
    named = {key: value for key, value in (match.groupdict() if match else {}).items() if value}
    yield replace(
        suspect,
        host=named.get("host") or named.get("host2") or suspect.host,
        rank=int(named["rank"]) if named.get("rank", "").isdigit() else suspect.rank,
        confidence="medium" if suspect.hint else signature.confidence,
    )


def _weigh_log_level(suspect: Suspect) -> Suspect:
    """A line that its logger calls information or a warning counts less than an error."""
    text = suspect.line.text
    harmless = HARMLESS.search(text) is not None
    if harmless and not suspect.hint and not TROUBLED.search(text):
        return replace(suspect, level=min(suspect.level, ENDING + 1), hint=True)
    if harmless or CAUTION.search(text):
        return replace(suspect, level=min(suspect.level, SPECIFIC - 1))
    return suspect


def _is_on_some_hosts(signature: Signature, scene: Scene, knowledge: Knowledge) -> bool:
    """Whether a signature matches on some hosts, while others have output of workers and not this."""
    several = len(scene.hosts) > 1
    places = set(scene.hosts) if several else {host for host in scene.ranks.values() if host}
    if len(places) < 2:
        return False

    def place_of(line: LogLine) -> str | None:
        return scene.host_of(line) or (line.source if several else None)

    matched = {
        place_of(line)
        for line in scene.lines
        if signature.pattern.search(line.text) and not knowledge.noise.search(line.text)
    }
    if signature.where == "exception":
        matched |= {
            place_of(exception.line)
            for exception in scene.exceptions
            if any(signature.pattern.search(text) for text in exception.lines)
        }
    if None in matched:  # of an unknown host; if others lost their peers, they had got further
        return any(not each.agent and knowledge.consequences.search(each.lines[0]) for each in scene.exceptions)
    others = {place_of(line) for line in scene.lines if not line.agent and not knowledge.noise.search(line.text)}
    return bool(matched) and bool((others & places) - matched)


# --- exceptions


def _check_exception(exception: LoggedException, scene: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """The signs in an exception and in those that led to it; the generic one only where nothing else is known."""
    if exception.agent and exception.kind.endswith(OF_LAUNCHER):
        return
    if _is_other_end_gone(exception, knowledge):
        return
    suspects = _match_exception(exception, scene, knowledge)
    if not any(suspect.level >= SPECIFIC for suspect in suspects):
        peers = _is_about_peers(exception, knowledge)
        if exception.agent and not peers and REFUSAL.search(exception.kind):
            refusal = _suspect("script-bad-argument", SPECIFIC, exception.line, scene, exception)
            yield replace(refusal, confidence="medium", why="the launcher itself refuses to start")
            return
        own = exception.agent and hiding_file(exception) is not None  # the launcher imports torch as well
        if not own and (exception.agent or peers or exception.kind.endswith(ENDS)):
            yield from suspects
            yield from _check_before_cleanup(exception, scene, knowledge)
            if _is_of_own_service(exception):
                yield replace(
                    _suspect("script-exception", ENDING - 1, exception.line, scene, exception), confidence="medium"
                )
            return
        suspects.append(_suspect("script-exception", SPECIFIC, exception.line, scene, exception))
    if exception.thread and exception.line.rank is None:  # an exception of a thread has no rank, and rarely ends one
        suspects = [replace(suspect, rank=None) for suspect in suspects]
    caught = scene.continues_after(exception)
    for suspect in suspects:
        level = min(suspect.level, ENDING + 1)
        yield replace(suspect, level=level, hint=True, confidence="low") if caught else suspect


def _check_before_cleanup(exception: LoggedException, scene: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """The script's own exception, where a collective in `finally` or `except` then waited in vain for the others."""
    if exception.agent or not exception.during or not exception.chain:
        return
    root = exception.chain[0]
    passive = any(map(knowledge.consequences.search, root.lines)) or _is_other_end_gone(root, knowledge)
    if passive or root.kind.endswith(ENDS) or all(map(INSTALLED.search, root.places)):
        return
    # what people expect and catch may have been harmless; any other sign of an error or an end then counts more
    level = ENDING - 1 if TRIED.search(root.kind) else SPECIFIC
    root = replace(root, line=replace(root.line, rank=exception.line.rank))
    yield replace(_suspect("script-exception", level, root.line, scene, root), confidence="medium")


def _is_of_own_service(exception: LoggedException) -> bool:
    """Whether the script could not reach a service that is no part of torch: a tracker, a database, a web server.

    It may also be one that another rank ran, so that any sign of the end of that rank counts more.
    """
    texts = (*exception.places, *exception.lines)
    kind = SERVICE.search(exception.kind) is not None and not exception.agent and not exception.ignored
    return kind and not all(map(INSTALLED.search, exception.places)) and not any(map(OF_RANKS.search, texts))


def _match_exception(exception: LoggedException, scene: Scene, knowledge: Knowledge) -> list[Suspect]:
    """The signatures in the best source of an exception that has a specific one."""
    suspects: list[Suspect] = []
    for source in exception.sources:
        texts = [text for text in source.lines if text.strip() not in (":", "")]
        texts = texts[:1] if source.own_words else texts
        # a script's next command may fail for want of what the first one did not make
        texts = [text for text in texts if text is texts[0] or missing_path(text) is None]
        if len(texts) > MAX_LINES:
            texts = texts[: MAX_LINES // 2] + texts[-MAX_LINES // 2 :]
        for text in texts:
            line = replace(exception.line, text=text)
            for code, signature in [*_matches(text, "exception", knowledge), *_matches(text, "line", knowledge)]:
                if code != "script-exception" and _is_raised_there(signature, source):
                    suspects += _accept(code, signature, line, scene, knowledge, exception)
        if any(suspect.level >= SPECIFIC for suspect in suspects):
            break
    return suspects


def _is_raised_there(signature: Signature, exception: LoggedException) -> bool:
    """Whether the traceback has the places that the signature asks for."""
    if signature.outside is not None and any(map(signature.outside.search, exception.places)):
        return False
    return signature.within is None or any(map(signature.within.search, exception.places[-LAST_PLACES:]))


def _is_about_peers(exception: LoggedException, knowledge: Knowledge) -> bool:
    """Whether an exception only says that another process has gone."""
    # `raise ... from` repeats the first exception; one raised during handling may have a cause of its own
    several = exception.during or not exception.chain
    sources = (*exception.chain, exception) if several else exception.chain[:1]
    sources = tuple(source for source in sources if source.agent or not source.kind.endswith(OF_COMMAND))
    return any(knowledge.consequences.search(text) for source in sources for text in source.lines)


def _is_other_end_gone(exception: LoggedException, knowledge: Knowledge) -> bool:
    """Whether it was raised where processes talk to each other."""
    return BROKEN.search(exception.kind) is not None and any(map(knowledge.peers.search, exception.frames[-4:]))


# --- ends of processes


def _check_exits(scene: Scene, knowledge: Knowledge, suspects: Sequence[Suspect]) -> Iterator[Suspect]:
    escalated = {int(match[1]) for match in hangs.STUCK.finditer(scene.text)}
    for exit_ in scene.exits:
        if exit_.signal is None or exit_.agent or exit_.pid in escalated or exit_.line is None:
            continue
        if exit_.rank is None and any(other.rank is not None and other.signal == exit_.signal for other in scene.exits):
            continue  # reported twice: by a shell, and by the launcher, which knows the rank
        if exit_.signal == ABORTED and (
            _is_explained(exit_, suspects) or has_complained_of_peers(exit_, scene, knowledge)
        ):
            continue
        for cause in knowledge.causes.values():
            if exit_.signal in cause.exits:
                yield _suspect_of_exit(cause, exit_, exit_.line, exit_.signal)


def _suspect_of_exit(cause: Cause, exit_: Exit, line: LogLine, number: int) -> Suspect:
    confidence: Confidence = "high" if number in CRASHES else "medium"
    line = replace(line, at=exit_.at)
    return Suspect(cause.code, cause.exits[number], line, exit_.rank, exit_.host, confidence, f"signal {number}")


def _is_explained(exit_: Exit, suspects: Sequence[Suspect]) -> bool:
    """Whether its rank or its host shows an error that names itself."""
    return any(
        suspect.level >= SPECIFIC and (suspect.rank == exit_.rank or suspect.host == exit_.host) for suspect in suspects
    )


def has_complained_of_peers(exit_: Exit, scene: Scene, knowledge: Knowledge) -> bool:
    """Whether a rank (or, if it has no lines of its own, its host) complained of others before it ended."""
    # lines with its rank were written before its end, wherever they stand: logs of several streams are often joined
    own = [line for line in scene.lines if line.rank == exit_.rank and line.rank is not None]
    if not own and exit_.line is not None:
        place = (exit_.line.source, exit_.host)
        own = [
            line
            for line in scene.lines
            if (exit_.number < 0 or line.number < exit_.number)
            and (line.source, line.host or exit_.host) == place
            and (line.rank is None or exit_.rank is None)
        ]
    return any(
        knowledge.consequences.search(line.text) and not line.agent and not AGENTS.search(line.text) for line in own
    )


# --- hosts and last lines


def _compare_hosts(scene: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """What must be equal on all hosts and is not, or must differ and does not."""
    if len(scene.hosts) < 2:
        return
    for cause in knowledge.causes.values():
        for signature in cause.signatures:
            if signature.where not in ("differs", "same"):
                continue
            values = _values_of_hosts(signature, scene)
            distinct = len({value for value, _ in values.values()})
            shows = distinct > 1 if signature.where == "differs" else distinct < len(values)
            if len(values) > 1 and shows:
                host, (_, line) = list(values.items())[-1]
                why = ", ".join(f"{name}: {value}" for name, (value, _) in values.items())
                suspect = Suspect(cause.code, signature.level, line, None, host, "medium", why)
                yield replace(suspect, hint=signature.hint, explains=signature.explains)


def _values_of_hosts(signature: Signature, scene: Scene) -> dict[str, tuple[str, LogLine]]:
    """The first value that each host prints, and its line."""
    values: dict[str, tuple[str, LogLine]] = {}
    for line in scene.lines[:STARTUP]:
        if match := signature.pattern.search(line.text):
            value = match.groupdict().get("value") or match[1]
            values.setdefault(host_or_source(line), (value, line))
    return values


def _check_last_lines(scene: Scene, knowledge: Knowledge) -> Iterator[Suspect]:
    """What a process printed last, before others reported its end."""
    last: dict[tuple[object, ...], LogLine] = {}
    for line in scene.lines:
        if not (line.agent or AGENTS.search(line.text) or knowledge.consequences.search(line.text)):
            last[line.source, line.host, line.rank] = line
    for line in last.values():
        for code, signature in _matches(line.text, "last", knowledge):
            yield from _accept(code, signature, line, scene, knowledge)
