"""Copy container images between hosts (`setup`): a host that has one gives it to a host that lacks it, and so on."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..answers.images import FIND_IMAGE, OFFER_IMAGE, TAKE_IMAGE, Arrived, FoundImage, TakenImage
from ..checks.containers import fix_of, pull_of
from ..errors import OrchError
from ..hosts.fleet import Fleet, each
from ..hosts.session import Refused
from ..inventory.container import Container, as_question, has_image
from ..inventory.model import Host
from ..output.console import size

LOOKING = "looking for the image"
MISSING = "container-image-missing"
MAX_TRIES = 3  # sources of one host


@dataclass(frozen=True)
class Copied:
    """An image that a host has got from another one."""

    image: str
    source: str
    """The name of the host that it came from."""
    taken: TakenImage


@dataclass(frozen=True)
class Images:
    """By host."""

    kept: Mapping[str, str]
    """Images that were there."""
    copied: Mapping[str, Copied]
    failed: Mapping[str, OrchError]


@dataclass(frozen=True)
class _Transfer:
    source: Host
    target: Host

    @property
    def name(self) -> str:
        """For progress and results: the host that lacks the image."""
        return self.target.name


def copy_images(hosts: Sequence[Host], others: Sequence[Host], ports: tuple[int, int], fleet: Fleet) -> Images:
    """Bring the image of each host to it, if another host has it. `ports`: where hosts may listen.

    `others`: hosts that only give images, and are asked only if none of `hosts` has one.
    """
    inside = [host for host in hosts if has_image(host.container)]
    found, failed = _look(inside, fleet)
    kept: dict[str, str] = {}
    copied: dict[str, Copied] = {}
    numbers = {host.name: number for number, host in enumerate([*hosts, *others])}
    for image in dict.fromkeys(_image(host) for host in inside):
        with_it = [host for host in inside if _image(host) == image and host.name in found]
        have = [host for host in with_it if found[host.name].image]
        lack = [host for host in with_it if host not in have]
        kept.update((host.name, image) for host in have)
        if have or not lack:
            answers = found
        else:
            candidates = [host for host in others if _image(host) == image]
            fleet.prepare(candidates)
            answers = found | _look(candidates, fleet)[0]
            have = [host for host in candidates if host.name in answers and answers[host.name].image]
        reasons = {host.name: _why_not(host, answers, have) for host in lack}
        failed.update((name, reason) for name, reason in reasons.items() if reason is not None)
        lack = [host for host in lack if reasons[host.name] is None]
        copies = _Copies(image, answers, numbers, ports, fleet)
        copies.make([host for host in have if _can_give(host, answers[host.name])], lack)
        copied.update(copies.copied)
        failed.update(copies.failed)
    return Images(kept, copied, failed)


def _look(hosts: Sequence[Host], fleet: Fleet) -> tuple[dict[str, FoundImage], dict[str, OrchError]]:
    """Answers and failures, by host."""
    found = fleet.each(
        hosts, lambda host, session: session.request(FIND_IMAGE, {"container": as_question(host.container)}), LOOKING
    )
    return dict(found.done), dict(found.failed)


class _Copies:
    """The copies of one image. Each round, every host that has it gives it to one that lacks it."""

    def __init__(
        self,
        image: str,
        found: Mapping[str, FoundImage],
        numbers: Mapping[str, int],
        ports: tuple[int, int],
        fleet: Fleet,
    ) -> None:
        self.copied: dict[str, Copied] = {}
        self.failed: dict[str, OrchError] = {}
        self._image, self._found, self._numbers, self._ports, self._fleet = image, found, numbers, ports, fleet
        self._key = secrets.token_hex(32)
        self._failures: Counter[str] = Counter()  # of sources
        self._tried: dict[str, set[str]] = defaultdict(set)  # the sources of each target

    def make(self, have: Sequence[Host], lack: Sequence[Host]) -> None:
        size_of_it = next((self._found[host.name].size for host in have), None)
        sources, waiting = list(have), list(lack)
        while transfers := self._pair(sources, waiting):
            results = each(
                transfers,
                lambda transfer: self._copy(transfer, size_of_it),
                self._fleet.parallel,
                self._fleet.progress,
                "waiting for the image",
            )
            for transfer in transfers:
                target, source = transfer.target, transfer.source
                if transfer.name in results.done:
                    self.failed.pop(transfer.name, None)
                    self.copied[transfer.name] = Copied(self._image, source.name, results.done[transfer.name])
                    sources.append(target)
                    waiting.remove(target)
                    continue
                self.failed[transfer.name] = failure = results.failed[transfer.name]
                self._tried[target.name].add(source.name)
                if isinstance(failure, Refused) and failure.code == "disk-full":  # of the target
                    waiting.remove(target)
                else:
                    self._failures[source.name] += 1

    def _pair(self, sources: Sequence[Host], waiting: Sequence[Host]) -> list[_Transfer]:
        """Give each target a source that it has not tried. Sources that failed more often than others are left out."""
        fewest = min((self._failures[source.name] for source in sources), default=0)
        trusted = [source for source in sources if self._failures[source.name] == fewest]
        for candidates in (trusted, list(sources)):
            transfers = []
            for target in waiting:
                tried = self._tried[target.name]
                source = next((each for each in candidates if each.name not in tried), None)
                if source is not None and len(tried) < MAX_TRIES:
                    transfers.append(_Transfer(source, target))
                    candidates.remove(source)
            if transfers:
                return transfers
        return []

    def _copy(self, transfer: _Transfer, size_of_it: int | None) -> TakenImage:
        source, target = transfer.source, transfer.target
        common = {"image": self._image, "key": self._key}
        offer = {
            **common,
            "engine": self._found[source.name].engine or self._found[target.name].engine,
            "node": self._numbers[source.name],
            "ports": list(self._ports),
            "cluster_address": source.cluster_address,
        }
        offered = self._fleet.session(source).request(OFFER_IMAGE, offer)
        whole = "" if size_of_it is None else f" of about {size(size_of_it)}"

        def show(arrived: Arrived, _: bytes) -> None:
            text = f"{size(arrived.received)}{whole} from {source.name}"
            self._fleet.progress.set_phase(target.name, text)

        question = {
            **common,
            "engine": self._found[target.name].engine,
            "size": size_of_it,
            "addresses": list(offered.addresses),
            "port": offered.port,
            "node": self._numbers[target.name],
            "source": self._numbers[source.name],
        }
        return self._fleet.session(target).follow(TAKE_IMAGE, question, show)


def _image(host: Host) -> str:
    return host.container.image if has_image(host.container) else ""


def _can_give(host: Host, found: FoundImage) -> bool:
    """Whether the image of a host can be copied: it is a file, or its engine makes an archive of it."""
    return found.engine != "enroot" or _image(host).startswith("/")


def _why_not(host: Host, found: Mapping[str, FoundImage], have: Sequence[Host]) -> OrchError | None:
    """Why the host does not get the image; None: it does. `have`: the hosts that have it."""
    container, answer = host.container, found[host.name]
    assert isinstance(container, Container)
    if answer.code != MISSING:
        fix = fix_of(answer.code or "", container, host.name)
        return Refused(answer.code or "unknown", f"{host.name}: {answer.why}" + (f"; {fix}" if fix else ""))
    if "@" in container.image and not container.image.startswith("/"):
        why = "an image that is named by its digest cannot be copied"
    elif not have:
        why = "no host has it"
    elif not _can_give(host, answer) or not any(_can_give(giver, found[giver.name]) for giver in have):
        why = "containers made by `enroot create` cannot be copied"
    else:
        return None
    return Refused(MISSING, f"{host.name}: {answer.why}, and {why}; {pull_of(container, answer.engine)}")
