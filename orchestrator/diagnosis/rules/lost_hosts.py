"""Hosts that the run lost: which, and whether the host itself went down. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...output.finding import Confidence
from .. import recorder_lines
from ..causes import load_knowledge
from ..scene import Scene
from ..suspects import ENDING, Suspect, Suspects
from ..transcript import LogLine

REPORTED = 93  # levels of what the rule here concludes
SILENT_HEAD = ENDING + 15
KILLED_GUARD = (
    "The guard of ddp-orch on this host was killed. The ranks of this attempt were then stopped on all hosts."
)
FIND_KILLER = "Find out what killed it: the kernel for want of memory (`dmesg`), a clean-up script, or a person."
NO_MAJORITY = "without it, the hosts that are left are no majority"
CUT_OFF = (
    "The network cut this host off from the others, or the host stood still for a while. It did not go down: it logged "
    "that it heard nothing from them."
)
SEVERAL_CUT_OFF = (
    "The network cut these hosts off from the others, or they stood still for a while. They did not go down: each "
    "logged that it heard nothing from the others."
)
PARTED = (
    "The network between these hosts failed. They did not go down: each logged that it heard too few of the others."
)
CUT_RANKS = (
    "This host is cut off on the network that the ranks use (address of the head: {address}), so they hang. It did not "
    "go down: it answers on another network."
)
CHECK_RANKS = (
    "Check that network on this host: `ip link`, `ethtool INTERFACE`, the cable and the switch port. To train on "
    "another network that the hosts share, set `interface` in the inventory, and run `ddp-orch restart`."
)
CUT_FROM = (
    "This host does not reach {head}, the head, at {address}, on the network that the ranks use, so they hang. One of "
    "both is cut off there, and no other host could tell which. Both answer on another network."
)
CHECK_RANKS_OF_BOTH = (
    "Check that network on both hosts: `ip link`, `ethtool INTERFACE`, the cable and the switch port. To train on "
    "another network that the hosts share, set `interface` in the inventory, and run `ddp-orch restart`."
)
CUT_OFF_MAYBE_MORE = (
    "The network cut this host off from the others, and perhaps other hosts too. It did not go down: it logged that it "
    "heard nothing from them."
)
CHECK_NETWORK = (
    "Check the network of this host: the cable, the switch, and `journalctl -k` for the driver. The host need not be "
    "replaced."
)
CHECK_NETWORKS = (
    "Check what the networks of these hosts have in common: a switch, a cable, a driver (`journalctl -k`). The hosts "
    "need not be replaced."
)


def add_lost_host(suspects: Suspects, scene: Scene) -> Suspects:
    """A host that the gang lost, or of which the recorder's line in a log says so.

    After `find_early_finisher`, as ranks that left early may be why a host counts as lost.
    """
    own = scene.recorder_lines
    if killed := recorder_lines.find_killed_guard(own):
        guard = Suspect("agent-killed", REPORTED, killed[1], None, killed[0], "high")
        return (*suspects, replace(guard, meaning=KILLED_GUARD, fix=FIND_KILLER))
    reported = recorder_lines.find_lost_host(own)
    host = scene.record.lost or (reported[0] if reported else None)
    silence = recorder_lines.find_silence(own, host)
    if silence and host not in (None, *silence.hosts) and recorder_lines.find_cut_off(own, str(host)):
        host = None  # it was only the first one to report that it had stopped
    found = [_loss_of(host, scene)] if host is not None else []
    if silence:
        line = found[0].line if found else silence.line  # so that the host that is reported comes first
        confidence: Confidence = "high" if silence.is_sure else "medium"
        others = [other for other in silence.hosts if other != host]
        like = replace(found[0], meaning="", fix="") if found else Suspect("host-lost", REPORTED, line, None, None)
        found += [replace(like, host=other, confidence=confidence, why=NO_MAJORITY) for other in others]
        found = _explain_cut(found, silence, scene)
    if found:
        return (*suspects, *found, *_lost_too(found, scene))
    return (*suspects, *_silent_head(scene), *_cut_ranks(scene))


def _loss_of(host: str, scene: Scene) -> Suspect:
    own = scene.recorder_lines
    lines = [line for lost, line in [recorder_lines.find_lost_host(own) or ("", None)] if lost == host and line]
    silent = recorder_lines.find_silent_head(own)
    lines += [silent[2]] if silent and silent[0] == host else []
    is_reported = bool(lines)
    is_noise = load_knowledge().is_noise
    lines += [line for line in reversed(scene.lines) if line.host == host and not is_noise(line.text)][:1]
    lines += [LogLine(0, host, host, None, scene.record.failed_at, "")]
    restarted = recorder_lines.RESTARTED.match(lines[0].text) is not None
    why = f"{host} was restarted" if restarted else f"{host} became unreachable"
    suspect = Suspect("host-lost", REPORTED, lines[0], None, host, "high", why, is_dated=is_reported)
    if match := recorder_lines.CUT_FROM.match(lines[0].text):
        meaning = CUT_FROM.format(**match.groupdict())
        return replace(suspect, confidence="medium", why="", meaning=meaning, fix=CHECK_RANKS_OF_BOTH)
    if match := recorder_lines.CUT_RANKS.match(lines[0].text):
        return replace(suspect, why="", meaning=CUT_RANKS.format(address=match["address"]), fix=CHECK_RANKS)
    cut_off = recorder_lines.find_cut_off(own, host)
    if cut_off is None or restarted:
        return suspect
    line = replace(lines[0], text="\n".join(dict.fromkeys([lines[0].text, cut_off.text])))
    meaning = CUT_OFF + (" It is back." if recorder_lines.is_back(own, host) else "")
    return replace(suspect, line=line, why="", meaning=meaning, fix=CHECK_NETWORK)


def _explain_cut(found: list[Suspect], silence: recorder_lines.Silence, scene: Scene) -> list[Suspect]:
    """The hosts that were lost together, with what it means if all of them were up: the network failed."""
    own = scene.recorder_lines
    hosts = [str(suspect.host) for suspect in found]
    spoke = [recorder_lines.find_cut_off(own, host) for host in hosts]
    said = [line for line in spoke if line is not None]
    if len(said) < len(hosts) or any(recorder_lines.RESTARTED.match(suspect.line.text) for suspect in found):
        return [replace(suspect, meaning="", fix="") for suspect in found]
    several = len(hosts) > 1
    alone = CUT_OFF if silence.is_sure else CUT_OFF_MAYBE_MORE
    meaning = PARTED if silence.is_parted else SEVERAL_CUT_OFF if several else alone
    if all(recorder_lines.is_back(own, host) for host in hosts):
        meaning += " They are back." if several else " It is back."
    lines = dict.fromkeys([*found[0].line.text.splitlines(), silence.line.text, *(line.text for line in said)])
    line = replace(found[0].line, text="\n".join(lines))
    fix = CHECK_NETWORKS if several else CHECK_NETWORK
    return [replace(suspect, line=line, why="", meaning=meaning, fix=fix) for suspect in found]


def _lost_too(found: list[Suspect], scene: Scene) -> Suspects:
    """Other hosts: without a guard before the run was over, or left out of the next attempt, and silent till then."""
    hosts = dict.fromkeys(scene.record.without_guard, "it was restarted, or its guard was killed")
    since = found[0].line.at or 0.0
    heard = {line.host for line in (*scene.lines, *scene.recorder_lines) if (line.at or 0.0) >= since}
    hosts |= {
        host: "the next attempt began without it"
        for host in recorder_lines.find_left_out(scene.recorder_lines)
        if host not in heard
    }
    known = {suspect.host for suspect in found}
    return tuple(replace(found[0], host=host, why=why) for host, why in hosts.items() if host not in known)


def _silent_head(scene: Scene) -> Suspects:
    """The head of which the others heard nothing, where no head has said since then what happened."""
    silent = recorder_lines.find_silent_head(scene.recorder_lines)
    if silent is None:
        return ()
    host, seconds, line = silent
    line = replace(line, at=None if line.at is None else line.at - seconds)  # what followed came later
    return (Suspect("host-lost", SILENT_HEAD, line, None, host, "medium", "the other hosts heard nothing from it"),)


def _cut_ranks(scene: Scene) -> Suspects:
    """A host whose ranks may hang at the moment."""
    cut = recorder_lines.find_cut_ranks(scene.recorder_lines)
    if cut is None:
        return ()
    host, address, line = cut
    meaning = CUT_RANKS.format(address=address)
    return (Suspect("host-lost", SILENT_HEAD, line, None, host, "medium", meaning=meaning, fix=CHECK_RANKS),)
