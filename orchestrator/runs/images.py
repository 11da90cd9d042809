"""Copy container images between hosts (`setup`): a host that has one gives it to a host that lacks it, and so on."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..answers.images import FIND_IMAGE, OFFER_IMAGE, TAKE_IMAGE, Arrived, FoundImage, TakenImage
from ..checks.containers import can_be_copied, fix_of, pull_of
from ..errors import OrchError
from ..hosts.fleet import Fleet, each
from ..hosts.session import Refused
from ..inventory.container import Container, as_question, has_image
from ..inventory.model import Host
from ..output.console import size

LOOKING = "looking for the image"
MISSING = "container-image-missing"


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


def copy_images(hosts: Sequence[Host], ports: tuple[int, int], fleet: Fleet) -> Images:
    """Bring the image of each host to it, if another host has it. `ports`: where hosts may listen."""
    inside = [host for host in hosts if has_image(host.container)]
    found = fleet.each(
        inside, lambda host, session: session.request(FIND_IMAGE, {"container": as_question(host.container)}), LOOKING
    )
    failed: dict[str, OrchError] = dict(found.failed)
    kept: dict[str, str] = {}
    copied: dict[str, Copied] = {}
    for image in dict.fromkeys(_image(host) for host in inside):
        with_it = [host for host in inside if _image(host) == image and host.name in found.done]
        have = [host for host in with_it if found.done[host.name].image]
        lack = [host for host in with_it if host not in have]
        kept.update((host.name, image) for host in have)
        reasons = {host.name: _why_not(host, found.done[host.name], some_have=bool(have)) for host in lack}
        failed.update((name, reason) for name, reason in reasons.items() if reason is not None)
        lack = [host for host in lack if reasons[host.name] is None]
        copies = _Copies(image, found.done, {host.name: number for number, host in enumerate(inside)}, ports, fleet)
        copies.make(have, lack)
        copied.update(copies.copied)
        failed.update(copies.failed)
    return Images(kept, copied, failed)


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

    def make(self, have: Sequence[Host], lack: Sequence[Host]) -> None:
        size_of_it = next((self._found[host.name].size for host in have), None)
        sources, waiting = list(have), list(lack)
        while waiting:
            transfers = [_Transfer(source, target) for source, target in zip(sources, waiting, strict=False)]
            del waiting[: len(transfers)]
            results = each(
                transfers,
                lambda transfer: self._copy(transfer, size_of_it),
                self._fleet.parallel,
                self._fleet.progress,
                "waiting for the image",
            )
            self.failed |= results.failed
            for transfer in transfers:
                if transfer.name in results.done:
                    self.copied[transfer.name] = Copied(self._image, transfer.source.name, results.done[transfer.name])
                    sources.append(transfer.target)

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


def _why_not(host: Host, found: FoundImage, *, some_have: bool) -> OrchError | None:
    """Why the host does not get the image; None: it does."""
    container = host.container
    assert isinstance(container, Container)
    if found.code != MISSING:
        fix = fix_of(found.code or "", container, host.name)
        return Refused(found.code or "unknown", f"{host.name}: {found.why}" + (f"; {fix}" if fix else ""))
    if some_have and can_be_copied(container):
        return None
    why = "an image that is named by its digest cannot be copied" if "@" in container.image else "no host has it"
    if some_have and "@" not in container.image:
        why = "containers made by `enroot create` cannot be copied"
    return Refused(MISSING, f"{host.name}: {found.why}, and {why}; {pull_of(container)}")
