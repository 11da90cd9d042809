"""Plan which host gets which files from which one, so that all have the same output folder. Pure.

Two files are equal if their sizes and times are: a copy keeps the time of its original, to the nanosecond.
"""

from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

FILE, FOLDER, LINK = "file", "folder", "link"
RESERVE = 64 << 20  # bytes that the copies leave free on a disk, as the health check wants it


class Entry(NamedTuple):
    """One path in an output folder. `disk`: bytes that it takes there. `target`: of a link."""

    path: str
    kind: str
    size: int = 0
    mtime: int = 0  # ns
    mode: int = 0
    disk: int = 0
    target: str = ""

    def equals(self, other: Optional["Entry"]) -> bool:
        if other is None or self.kind != other.kind:
            return False
        if self.kind == FILE:
            return (self.size, self.mtime) == (other.size, other.mtime)
        return self.target == other.target


class Listing(NamedTuple):
    """The output folder of one node. `incomplete`: copying to it was interrupted. `free`: bytes on its disk.

    `leads`: rank 0 ran there, in an attempt that began then (Unix time, s), and no other node has what it saved since.
    """

    entries: Tuple[Entry, ...]
    incomplete: bool
    free: int
    leads: Optional[float] = None

    @property
    def newest(self) -> float:
        """The time of its newest file, ns; -inf if it has none."""
        return max((float(entry.mtime) for entry in self.entries if entry.kind == FILE), default=float("-inf"))


class Copies(NamedTuple):
    """What one node has to do, in this order."""

    aside: Tuple[str, ...]  # to be moved aside; what is in a folder comes before it
    keep: bool  # what is moved aside stays there, as nobody else has it
    folders: Tuple[Entry, ...]
    links: Tuple[Entry, ...]
    files: Dict[int, List[Entry]]  # by the node to fetch them from
    size: int  # of the files
    space: int  # that the disk must have for them
    emptied: Tuple[str, ...]  # those of `aside` in whose place an empty file comes: a snapshot that was cut off?

    @property
    def is_empty(self) -> bool:
        return not (self.aside or self.folders or self.links or self.files)

    @property
    def fetched(self) -> int:
        """The number of files to fetch."""
        return sum(len(entries) for entries in self.files.values())


Holders = Dict[str, Tuple[Entry, List[int]]]  # by path: what all nodes shall have, and who has it


def plan(
    mode: str, listings: Dict[int, Listing], head: int, targets: Sequence[int], before: Optional[int] = None
) -> Dict[int, Copies]:
    """What each of the targets has to do. `mode`: head, newest or union.

    `before`: as of_rank_0 wants it. With newest and union, what is older there was there to be chosen.
    """
    is_union = mode == "union"
    source = source_of(mode, listings, head)
    wanted = _union(listings) if is_union else {entry.path: (entry, [source]) for entry in listings[source].entries}
    last = _led_last(listings) if before is None else before
    planned = {}
    for target in targets:
        listing = listings[target]
        own = set() if is_union else {entry.path for entry in listing.entries}
        is_replaced = (is_union or target != source) and (mode == "head" or target != last)
        keep = listing.leads is not None and is_replaced
        planned[target] = _copies(listing, target, wanted, own, keep)
        if keep and mode != "head" and 2 * planned[target].space + RESERVE > listing.free:
            # hosts that all save have much the same, so this must not fill the disk: the script has to save there, too
            planned[target] = _copies(listing, target, wanted, own, keep=False)
    return planned


def _led_last(listings: Dict[int, Listing]) -> Optional[int]:
    """The node where rank 0 ran last, of those that are there."""
    led = {node: listing.leads for node, listing in listings.items() if listing.leads is not None}
    return max(led, key=lambda node: led[node], default=None)


def of_rank_0(listings: Dict[int, Listing], head: int, before: Optional[int]) -> int:
    """The node that has what rank 0 saved last, for the mode `head`.

    `head`: of the next attempt. `before`: that of the attempt before, if it is there; None: the run begins. Then rank 0
    of an earlier run of this name may have run elsewhere. That does not count if nothing newer was saved there, as runs
    without `run.resume` do not note where rank 0 runs.
    """
    with_files = [node for node in listings if listings[node].newest > float("-inf")]
    if before in with_files:
        return before
    led = {node: leads for node in with_files for leads in [listings[node].leads] if leads is not None}
    last = max(led, key=lambda node: led[node], default=head)
    if before is None and listings[last].newest > listings[head].newest:
        return last
    return head if head in with_files or not with_files else max(with_files, key=lambda node: listings[node].newest)


def source_of(mode: str, listings: Dict[int, Listing], head: int) -> int:
    """The node whose folder all others get.

    A folder that is half a copy of another one is the last choice: it may mix files of two snapshots.
    """

    def preference(node: int) -> Tuple[bool, bool, int, int]:
        newest = max((entry.mtime for entry in listings[node].entries if entry.kind == FILE), default=0)
        return not listings[node].incomplete, mode == "head" and node == head, newest, -node

    return max(listings, key=preference)


def _union(listings: Dict[int, Listing]) -> Holders:
    """Of each path the newest, and all nodes that have that one. A folder wins over what is none."""
    merged: Holders = {}
    for node in sorted(listings):
        for entry in listings[node].entries:
            known, holders = merged.get(entry.path, (None, []))
            if entry.equals(known):
                holders.append(node)
            elif known is None or _rank(entry) > _rank(known):
                merged[entry.path] = entry, [node]
    return merged


def _rank(entry: Entry) -> Tuple[bool, int]:
    return entry.kind == FOLDER, entry.mtime


def _copies(listing: Listing, target: int, wanted: Holders, own: Iterable[str], keep: bool) -> Copies:
    """`own`: paths of the target that are moved aside where they are not wanted. `keep`: also where they differ."""
    has = {entry.path: entry for entry in listing.entries}
    missing = [held for path, held in wanted.items() if not held[0].equals(has.get(path))]
    aside = {path for path in own if path not in wanted}
    aside |= {entry.path for entry, _ in missing if entry.path in has and (keep or has[entry.path].kind != entry.kind)}
    emptied = {entry.path for entry, _ in missing if _is_cut(entry, has.get(entry.path))}
    aside |= emptied
    files: Dict[int, List[Entry]] = {}
    for number, (entry, holders) in enumerate(missing):
        if entry.kind == FILE:  # hosts that have the same file share the work of sending it
            files.setdefault(holders[(target + number) % len(holders)], []).append(entry)
    copied = [entry for entries in files.values() for entry in entries]
    replaced = [has[entry.path].disk for entry in copied if entry.path in has and entry.path not in aside]
    peak = sum(entry.disk for entry in copied) - sum(replaced) + max(replaced, default=0)
    return Copies(
        tuple(sorted(aside, reverse=True)),
        keep,
        tuple(sorted(entry for entry, _ in missing if entry.kind == FOLDER)),
        tuple(entry for entry, _ in missing if entry.kind == LINK),
        files,
        sum(entry.size for entry in copied),
        peak,
        tuple(sorted(emptied)),
    )


def _is_cut(entry: Entry, own: Optional[Entry]) -> bool:
    return own is not None and entry.kind == own.kind == FILE and not entry.size and own.size > 0


def summary(copies: Copies, hosts: Dict[int, str]) -> str:
    """`3 files (1.2 GB) copied from gpu-01`."""
    sources = ", ".join(hosts[node] for node in sorted(copies.files))
    return "%s (%s) copied from %s" % (files_of(copies.fetched), size_of(copies.size), sources)


def files_of(count: int) -> str:
    return "1 file" if count == 1 else "%d files" % count


def size_of(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return "%d B" % size if unit == "B" else "%.1f %s" % (size, unit)
        size /= 1000.0
    return "%.1f TB" % size


def age_of(seconds: float) -> str:
    for unit, length, most in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172800.0)):
        if seconds < most:
            return "%d %s" % (max(seconds, 0.0) / length, unit)
    return "%d days" % (seconds / 86400.0)
