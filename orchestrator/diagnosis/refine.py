"""What several lines tell together and no single one does: the same error means another cause by who says it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .hangs import FINISHED, PEER_GONE, Confidence, own_lines
from .scene import STEPS, Scene
from .signs import ENDING, FALLBACK, SPECIFIC, Suspect
from .transcript import Said

GIB = {"GiB": 1.0, "MiB": 1 / 1024, "GB": 1.0, "MB": 1 / 1024, "KiB": 1 / 1048576, "bytes": 1 / 1073741824}
SIBLINGS = 16  # processes whose numbers lie so near were started together
CONTEXT = 3.0  # GiB that CUDA, NCCL and the libraries take beside what torch allocates
OTHERS = 1.5  # GiB that a GPU may hold outside of what is told before others must be using it
LOCAL = re.compile(
    r"while trying to connect to \(?(?P<host>[^,()]+), (?P<port>\d+)\)?|to host (?P<host2>[\w.:-]+):(?P<port2>\d+)"
)
TIMED_OUT = re.compile(
    r"client socket has timed out|TCP client failed to connect|failed to connect to (?:any|host)|connect\(\) timed out"
)


def refine(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    for step in (
        _passed_over,
        _device_ordinals,
        _memory,
        _loopback,
        _connects,
        _kills,
        _terminated,
        _cancelled,
        _files,
        _starts,
        _silent_hosts,
        _met_in_vain,
        _left,
        _stuck_later,
        _beyond_any_host,
        _refusal,
    ):
        suspects = step(suspects, seen)
    return suspects


def _passed_over(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A line of trouble that training went on after, until an exception: a warning, as it turned out."""
    ends = [one.line.number for one in suspects if one.raised is not None and not one.hint and one.level >= 50]
    if not ends:
        return suspects
    steps = [line.number for line in seen.lines if STEPS.search(line.text) and line.number < max(ends)]

    def passed(one: Suspect) -> bool:
        after = [number for number in steps if number > one.line.number]
        return one.raised is None and 50 <= one.level < 90 and one.line.number < max(ends) and len(after) >= 3

    return [replace(one, hint=True, confidence="low") if passed(one) else one for one in suspects]


def with_known(
    suspects: list[Suspect],
    seen: Scene,
    oom_hosts: Sequence[str],
    stopped_by: str | None,
    failed_at: float | None,
) -> list[Suspect]:
    """What the guards and the gang of the run know."""
    if failed_at is not None:  # what we have sent ourselves is no cause
        sent = ("sigterm-preempted", "user-interrupt", "sighup-session-closed")
        suspects = [one for one in suspects if one.code not in sent or (one.line.at or 0.0) < failed_at]
    if stopped_by is not None:
        line = Said(len(seen.lines), "", None, None, None, f"stopped by {stopped_by}")
        suspects = [*suspects, Suspect("user-interrupt", 93, line, None, None, "high", line.text)]
    return [
        replace(
            one, code="cgroup-oom-killed", confidence="medium", why="the cgroup has counted a kill for want of memory"
        )
        if one.code == "worker-sigkilled" and one.host in oom_hosts
        else one
        for one in suspects
    ]


def ended_early(
    suspects: Sequence[Suspect], seen: Scene, finished: Mapping[int, float], failed_at: float | None
) -> list[Suspect]:
    """Ranks that had ended with 0 when another lost its peer: they had fewer batches, or left by themselves."""
    early = sorted(rank for rank, at in finished.items() if failed_at is not None and at < failed_at)
    lost = [
        one
        for one in seen.raised
        if not one.agent and one.line.rank not in finished and any(PEER_GONE.search(text) for text in one.lines)
    ]
    if not early or not lost or any(one.level >= ENDING and not one.hint for one in suspects):
        return []
    line = lost[0].line
    why = f"rank {', '.join(map(str, early))} had ended with exit code 0, and was still waited for"
    return [Suspect("uneven-inputs", ENDING + 5, line, line.rank, seen.host(line), "medium", why, raised=lost[0])]


def lost_host(seen: Scene, known: str | None, failed_at: float | None, told: tuple[str, Said] | None) -> list[Suspect]:
    """`known`: the host that the gang lost; `told`: what a log without a gang says of that."""
    host = known or (told[0] if told else None)
    if host is None:
        return []
    last = [line for line in seen.lines if line.host == host]
    line = told[1] if told else last[-1] if last else Said(0, host, host, None, failed_at, "")
    return [Suspect("host-lost", 93, line, None, host, "high", "nothing was heard of it any more")]


def _map(suspects: list[Suspect], code: str, change: Callable[[Suspect], Suspect]) -> list[Suspect]:
    return [change(one) if one.code == code else one for one in suspects]


def _device_ordinals(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """`invalid device ordinal`: too many processes; the global rank as number where only later hosts fail; MIG."""
    hit = [one for one in suspects if one.code == "nproc-exceeds-gpus"]
    if not hit:
        return suspects
    if re.search(r"\bMIG\b|MIG-", seen.text):
        return _map(suspects, "nproc-exceeds-gpus", lambda one: replace(one, code="gpu-mig-unsupported"))
    hosts = {one.host or one.line.source for one in hit}
    others = [host for host in seen.hosts if host not in hosts]
    head = next(
        (host for rank, host in seen.ranks.items() if rank == 0 and host), seen.hosts[0] if seen.hosts else None
    )
    uses_rank = re.search(
        r"(?:set_device|\.cuda|\.to)\((?:args\.|self\.)?(?:global_)?rank\)|cuda:\{?(?:args\.|self\.)?(?:global_)?rank\b",
        seen.text,
    )
    if (others and head in others) or uses_rank:
        return _map(suspects, "nproc-exceeds-gpus", lambda one: replace(one, code="global-rank-as-device"))
    return suspects


def _gib(text: str, pattern: str) -> float | None:
    match = re.search(pattern + r"([\d.]+) ?([KMG]i?B|bytes)", text)
    return float(match[1]) * GIB.get(match[2], 1 / 1048576) if match else None


def _memory(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """Out of GPU memory: by the numbers of the message, whose memory is it?"""
    started = {int(pid) for pid in re.findall(r"(?:pid[:=] ?|Sending process )(\d+)", seen.text)}

    def judge(one: Suspect) -> Suspect:
        text = " ".join(one.raised.lines) if one.raised is not None else one.line.text
        total = _gib(text, r"total capacity of ") or _gib(text.replace("; ", " "), r"\(GPU \d+ ")
        free = _gib(text, r"of which ")
        if free is None:
            free = _gib_before(text, " free")
        own = _gib(text, r"this process has ")
        if own is None:
            own = _gib_before(text, " reserved in total")
        users = {
            int(match[1]): float(match[2]) * GIB[match[3]]
            for match in re.finditer(r"Process (\d+) has ([\d.]+) ([GM]iB) memory in use", text)
        }
        contained = own is None and bool(users)  # a process in a container is listed there by another number
        ours = started
        if contained:
            itself = _itself(text, users)
            own = users.get(itself)
            ours = {itself}
        kin = sum(memory for pid, memory in users.items() if any(abs(pid - each) < SIBLINGS for each in ours))
        foreign = sum(users.values()) - kin
        if total is not None and free is not None and own is not None:
            foreign = max(foreign, total - free - (kin if contained else own + kin))
        if foreign > OTHERS and (own is None or foreign > 0.25 * own):
            why = f"about {foreign:.1f} GiB are not this job's"
            certain: Confidence = "medium" if contained or foreign < 4 else "high"
            return replace(one, code="gpu-memory-held-by-others", why=why, confidence=certain)
        return one

    return _map(suspects, "cuda-oom", judge)


def _gib_before(text: str, what: str) -> float | None:
    match = re.search(rf"([\d.]+) ([GM]iB){what}", text)
    return float(match[1]) * GIB[match[2]] if match else None


def _itself(text: str, users: Mapping[int, float]) -> int:
    """The process that holds what the message says it has allocated, and the little more that CUDA takes; or -1."""
    allocated = _gib(text, r"Of the allocated memory ") or 0.0
    reserved = _gib_before(text, " is reserved by PyTorch") or 0.0
    fits = [pid for pid, memory in users.items() if allocated <= memory <= allocated + reserved + CONTEXT]
    return min(fits, key=lambda pid: users[pid], default=-1) if allocated else -1


def _connects(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """Who could not connect to which port: every host; only the others; or a port that nobody configured."""
    lines = [line for line in seen.lines if TIMED_OUT.search(line.text)]
    if not lines or any(one.level >= 60 and not one.hint for one in suspects):
        return suspects
    match = next((found for line in lines if (found := LOCAL.search(line.text))), None)
    port = int(match["port"] or match["port2"]) if match else None
    hosts = {line.host or line.source for line in lines}
    rendezvous = re.search(
        r"Rendezvous complete|rendezvous complete|(?:worker|local_world_size|MASTER_PORT)\S*=\S+|init_process_group",
        seen.text,
    )
    configured = re.search(
        rf"(?:--rdzv[-_]endpoint[= ]\S+:|--master[-_]port[= ]|MASTER_PORT[=:] ?|rdzv_endpoint\s*[:=]\s*\S+:){port}\b",
        seen.text,
    )
    waited_for = re.search(r"\d+/\d+ clients joined", seen.text) is not None  # so the store was there
    everyone = len(seen.hosts) > 1 and hosts >= set(seen.hosts)
    everyone = everyone or (
        len(seen.hosts) < 2 and re.search(r"--(?:node|machine)[-_]rank[= ]0\b", seen.text) is not None
    )
    certain: Confidence
    if port is not None and port >= 32768 and rendezvous and not configured:
        code, why, certain = "ephemeral-ports-blocked", f"port {port} is one that nobody configured", "medium"
    elif waited_for:
        code, why, certain = "rdzv-port-blocked", "the head waited for clients, and one could not connect", "medium"
        suspects = [replace(one, hint=True) if one.code == "rdzv-node-missing" else one for one in suspects]
    elif everyone:
        code, why, certain = "rdzv-endpoint-not-hosted", "every host waited for the endpoint, the head too", "medium"
    else:
        code, why, certain = (
            "rdzv-port-blocked",
            "a firewall, or nothing listens there",
            "medium" if len(seen.hosts) > 1 else "low",
        )
    line = lines[0]
    return [*suspects, Suspect(code, 28, line, line.rank, seen.host(line), certain, why)]


UNRESOLVED = "Unable to resolve hostname to a (local) address"
REACHED = re.compile(r"by peer \[(?:::ffff:)?127\.")  # there was a connection by such an address


def _loopback(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """Ranks of several hosts, or one that could not resolve its own name, that dial 127.x: it is their address."""
    if (len(seen.hosts) < 2 and UNRESOLVED not in seen.text) or REACHED.search(seen.text):
        return suspects
    why = "a host resolves its own name to 127.x"
    return [
        replace(one, level=67, confidence="medium", why=why)
        if one.code == "gloo-loopback-address" and not one.hint and one.level < SPECIFIC
        else one
        for one in suspects
    ]


def _kills(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A kill for want of memory is told by the kernel, not by the one that was killed: it gets the rank of it."""
    killed = [one for one in seen.exits if one.signal == 9 and not one.agent and one.rank is not None]
    if not killed:
        return suspects
    pids = {one.pid: one for one in killed}

    def place(one: Suspect) -> Suspect:
        match = re.search(r"[Kk]illed process (\d+)", one.line.text)
        exit_ = pids.get(int(match[1])) if match else None
        if exit_ is None and len(killed) == 1:
            exit_ = killed[0]
        return replace(one, rank=exit_.rank, host=exit_.host or one.host) if exit_ and one.rank is None else one

    for code in ("host-oom-killed", "cgroup-oom-killed"):
        suspects = _map(suspects, code, place)
    return suspects


def _terminated(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A rank that SIGTERM ended although its agent sent none: the agent names it as the first to fail."""
    sent = {int(match[1]) for match in re.finditer(r"Sending process (\d+) closing signal", seen.text)}
    found = [
        one for one in seen.exits if one.signal == 15 and one.root and one.pid not in sent and one.line is not None
    ]
    return suspects + [
        Suspect(
            "sigterm-preempted",
            37,
            replace(one.line, at=one.at),
            one.rank,
            one.host,
            "medium",
            "a rank alone was told to end",
        )
        for one in found
        if one.line is not None
    ]


def _cancelled(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """Slurm cancels a step of its own accord when one of its tasks has failed: then nobody else did."""
    failed = min((one.number for one in seen.exits if one.code > 0), default=None)
    if failed is None:
        return suspects
    return [
        one for one in suspects if "CANCELLED AT" not in one.line.text or one.line.number < failed or one.level > 90
    ]


SAVED = re.compile(
    r"(?i)sav(?:ed|ing)|wr(?:ote|iting|itten)|creat(?:ed|ing)|dump(?:ed|ing)|cach(?:ed|ing)|built|building|prepared"
)
SHARED = re.compile(r"/(?:nfs|shared|share|mnt/nfs|lustre|gpfs|scratch|fsx|efs|beegfs|weka|cephfs)\w*/")


REMOVES = re.compile(r"\b(?:os\.(?:remove|unlink|rename|replace|rmdir)|shutil\.(?:rmtree|move)|\w+\.unlink)\(")
LAST_FRAME = 3  # lines, with Python's marks under the code
PATH = re.compile(r"['\"](/?[\w./ -]+)['\"]")


def in_sent_code(suspects: list[Suspect]) -> list[Suspect]:
    """All hosts have the same code from us: none has another version, and what is not in it is missing on all.

    What ranks write beside it is another matter: that is on the host of the rank.
    """

    def judge(one: Suspect) -> Suspect:
        match = PATH.search(one.line.text)
        if match is None or match[1].startswith("/") or one.why:
            return one
        why = "a relative path: not sent with the code, or written on another host"
        code = "dataset-missing" if one.rank == 0 else one.code  # what others wrote is seldom read by rank 0
        return replace(one, code=code, confidence="medium", why=why)

    suspects = [one for one in suspects if one.code != "code-version-skew"]
    for code in ("dataset-missing", "file-missing-on-host"):
        suspects = _map(suspects, code, judge)
    return suspects


def _files(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A file that is missing on one rank, and that another said it had written."""

    def judge(one: Suspect) -> Suspect:
        match = PATH.search(one.line.text)
        if match is None or one.raised is None:
            return one
        if any(REMOVES.search(frame) for frame in one.raised.frames[-LAST_FRAME:]):
            why = "it removes or renames a file that another rank has removed or renamed at the same time"
            return replace(one, code="shared-fs-lag", confidence="medium", why=why)
        name = match[1].rsplit("/", 1)[-1]
        wrote = [
            line
            for line in seen.lines
            if line.number != one.line.number
            and name in line.text
            and SAVED.search(line.text)
            and "Error" not in line.text
        ]
        if not wrote or not name:
            return one
        if SHARED.search(match[1]) or len(seen.hosts) < 2:
            return replace(one, code="shared-fs-lag", confidence="medium", why="another rank had just written it")
        return replace(one, code="file-missing-on-host", why="another host wrote it, to a disk of its own")

    for code in ("dataset-missing", "file-missing-on-host"):
        suspects = _map(suspects, code, judge)
    return suspects


EXITING = re.compile(r"terminate called without an active exception.*\n(?:.*\n){1,12}?.*<no Python frame>")
"""An abort after the interpreter's end, as faulthandler tells it: gloo's threads, and no line of the script."""


def _starts(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A finished run that never destroyed its group and fails at its exit, with nothing else to be seen."""
    if EXITING.search(seen.text) and not any(one.level >= 50 and not one.hint for one in suspects):
        return [
            replace(one, hint=False, level=42, confidence="medium")
            if one.code == "process-group-not-destroyed" and "terminate called" in one.line.text
            else one
            for one in suspects
            if one.code != "worker-segfault"
        ]
    ended = [one for one in seen.exits if one.rank is not None]
    aborted = bool(ended) and all(one.signal == 6 for one in ended)
    others = [one for one in suspects if one.level >= 10 and one.code != "process-group-not-destroyed"]
    finished = ended and not others and any(FINISHED.search(line.text) for line in seen.lines)
    if (aborted and "terminate called without an active exception" in seen.text) or finished:
        certain: Confidence = "medium" if aborted else "low"
        return [
            replace(one, hint=False, level=38, confidence=certain) if one.code == "process-group-not-destroyed" else one
            for one in suspects
        ]
    return [one for one in suspects if one.code != "process-group-not-destroyed" or one.level < 20]


AGENT = re.compile(r"closing signal|exitcode|ChildFailedError|torch[./]distributed[./]elastic|Rendezvous\w*Error")
LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Failed to recv|keep-alive|RendezvousConnectionError"
)


def _silent_hosts(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A host whose agent never reported, while others lost their peers or the store."""
    if len(seen.hosts) < 2 or any(one.level >= 30 and not one.hint for one in suspects):
        return suspects
    by_host: dict[str, list[Said]] = {}
    for line in seen.lines:
        by_host.setdefault(line.host or line.source, []).append(line)
    silent = [
        host for host, lines in by_host.items() if not any(line.agent or AGENT.search(line.text) for line in lines)
    ]
    others = [line for host, lines in by_host.items() if host not in silent for line in lines if LOST.search(line.text)]
    if len(silent) != 1 or not others or "exit barrier" in seen.text:
        return suspects
    host = silent[0]
    last = by_host[host][-1]
    went_on = any(raised.line.host == host for raised in seen.raised) or any(
        LOST.search(line.text) for line in by_host[host]
    )
    if not went_on and not any(STEPS.search(line.text) for line in by_host[host]):
        return suspects
    code = "agent-killed" if went_on else "host-lost"
    why = "its launcher never reported" if went_on else "it stopped without a word"
    return [*suspects, Suspect(code, 29, last, None, host, "medium" if went_on else "low", why)]


def _met_in_vain(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """One host gave up waiting for the others, and another reached the store all the same: they waited apart."""
    gave_up = [one for one in seen.raised if one.agent and one.kind.endswith("RendezvousTimeoutError")]
    ends = ("RendezvousConnectionError", "RendezvousClosedError")
    reached = [one for one in seen.raised if one.agent and one.kind.endswith(ends)]
    hosts = {one.line.host or one.line.source for one in gave_up}
    others = [one for one in reached if (one.line.host or one.line.source) not in hosts]
    if not gave_up or not others or any(not one.agent for one in seen.raised):
        return suspects
    line = others[0].line
    if any("_create_tcp_store" in frame for frame in others[0].frames):
        why = "it could not connect to the store, where another host waited"
        return [*suspects, Suspect("rdzv-port-blocked", 29, line, None, seen.host(line), "medium", why)]
    why = "both reached the store and did not meet: another rdzv id, or another --nnodes"
    # who was told that the rendezvous is closed knew it by its id
    code = "nnodes-mismatch" if others[0].kind.endswith("RendezvousClosedError") else "rdzv-id-mismatch"
    return [*suspects, Suspect(code, 29, line, None, seen.host(line), "low", why)]


def _left(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """All complain of a peer that has gone, but one, which has ended without an error: that one is the peer."""
    complain = {
        raised.line.rank
        for raised in seen.raised
        if not raised.agent and any(PEER_GONE.search(text) for text in raised.lines)
    }
    failed = {one.rank for one in seen.exits if one.rank is not None and one.signal != 15}
    absent = [rank for rank in seen.ranks if rank not in complain | failed]
    if not complain or None in complain or not absent or any(one.level >= ENDING for one in suspects):
        return suspects
    if all(any(FINISHED.search(line.text) for line in own_lines(seen.lines, [rank])[-2:]) for rank in absent):
        why = f"rank {', '.join(map(str, absent))} had ended, and was still waited for"
        first = min(rank for rank in complain if rank is not None)
        return _map(
            suspects,
            "gloo-peer-lost",
            lambda one: replace(
                one, code="uneven-inputs", rank=first, host=seen.ranks[first], why=why, confidence="medium"
            ),
        )
    if len(absent) > 1:
        return suspects
    host = seen.ranks[absent[0]]
    why = f"rank {absent[0]} alone complains of nobody: it ended, or left the group, without an error"
    return _map(
        suspects, "gloo-peer-lost", lambda one: replace(one, rank=absent[0], host=host, why=why, confidence="medium")
    )


TIMED_OUT_COLLECTIVE = re.compile(r"caught collective operation timeout")


def _stuck_later(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """A watchdog that gets stuck after a collective has timed out is stuck because of it."""
    first = min((line.at or 0.0 for line in seen.lines if TIMED_OUT_COLLECTIVE.search(line.text)), default=None)
    if first is None:
        return suspects
    return [one for one in suspects if one.code != "nccl-watchdog-stuck" or one.line.at is None or one.line.at < first]


MOST_MEMORY = 1 << 42  # bytes: more has no host


def _beyond_any_host(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """An allocation that no host could ever grant is a mistake in its size."""

    def judge(one: Suspect) -> Suspect:
        match = re.search(r"tried to allocate (\d+) bytes", one.line.text)
        if match is None or int(match[1]) <= MOST_MEMORY:
            return one
        why = f"it asked for {int(match[1]) >> 40} TiB of main memory, more than any host has: some size is wrong"
        return replace(one, code="script-exception", why=why)

    return _map(suspects, "host-oom-killed", judge)


REFUSES = re.compile(
    r"(?i)\b(?:argument|option|config\w*|overrid\w*|flag|parameter|setting|key|usage|invalid value)s?\b"
)


def _refusal(suspects: list[Suspect], seen: Scene) -> list[Suspect]:
    """Ended by its own will before any step, with words about its settings and without an exception."""
    ended = [one for one in seen.exits if one.rank is not None and one.signal is None]
    if (
        not ended
        or not {one.code for one in ended} <= {1, 2}
        or seen.first_step is not None
        or any(not one.agent for one in seen.raised)
    ):
        return suspects
    if any(one.level >= FALLBACK and not one.hint for one in suspects):
        return suspects
    for line in seen.last_words:
        if REFUSES.search(line.text):
            why = "it ended by itself before the first step, without an exception"
            line = replace(line, at=min((one.at for one in ended if one.at is not None), default=line.at))
            return [*suspects, Suspect("script-bad-argument", ENDING + 2, line, None, seen.host(line), "low", why)]
    return suspects
