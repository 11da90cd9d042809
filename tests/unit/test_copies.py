"""`run.resume`: which host gets which files from which one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.resume import copies
from orchestrator.node.resume.copies import FILE, FOLDER, LINK, Copies, Entry, Listing


def file(path: str, mtime: int = 1, size: int = 10) -> Entry:
    return Entry(path, FILE, size, mtime, 0o600, size)


def folder(*entries: Entry, incomplete: bool = False) -> Listing:
    return Listing(entries, incomplete, 1 << 40)


def fetched(planned: Copies) -> dict[int, list[str]]:
    return {source: [entry.path for entry in entries] for source, entries in planned.files.items()}


def test_head_makes_every_folder_that_of_the_head() -> None:
    head = folder(Entry("a", FOLDER), file("a/model", 5), Entry("last", LINK, target="a"))
    other = folder(file("a/model", 9), file("log"))
    planned = copies.plan("head", {0: head, 1: other, 2: folder()}, 0, [0, 1, 2])
    assert planned[0].is_empty
    assert planned[1].aside == ("log",) and fetched(planned[1]) == {0: ["a/model"]}
    assert [entry.path for entry in (*planned[2].folders, *planned[2].links)] == ["a", "last"]


def test_what_rank_0_saved_is_kept_where_others_went_on_without_it() -> None:
    head = folder(file("config", 1), file("model", 9))
    back = folder(file("config", 1), file("model", 5), file("log"))
    for mode, leads, kept in (
        ("head", 5.0, True),
        ("head", None, False),
        ("newest", 5.0, True),
        ("newest", None, False),
    ):
        planned = copies.plan(mode, {0: head, 1: back._replace(leads=leads)}, 0, [1], before=0)[1]
        assert planned.keep is kept and fetched(planned) == {0: ["model"]} and planned.space == 10
        assert planned.aside == (("model", "log") if kept else ("log",))
    (planned,) = copies.plan("union", {0: head, 1: back._replace(leads=5.0)}, 0, [1], before=0).values()
    assert planned.keep and planned.aside == ("model",)  # the others get its log


@pytest.mark.parametrize("mode", ["newest", "union"])
@pytest.mark.parametrize(
    ("leads", "before", "kept"),
    [
        ((5.0, None), 0, False),  # it was there when the others' files were chosen
        ((5.0, 9.0), 1, True),
        ((5.0, 9.0), None, True),  # a run that continues
        ((5.0, None), None, False),
        ((5.0, None), -1, True),  # two heads were lost, and the first is back
    ],
)
def test_with_newest_files_are_kept_where_an_attempt_began_without_them(
    mode: str, leads: tuple[float | None, float | None], before: int | None, kept: bool
) -> None:
    listings = {node: folder(file("model", 5 + node))._replace(leads=leads[node]) for node in (0, 1)}
    planned = copies.plan(mode, listings, 1, [0, 1], before)
    assert planned[0].keep is kept and planned[0].aside == (("model",) if kept else ())
    assert planned[1].is_empty


def test_with_newest_nothing_is_kept_where_the_script_would_lack_the_space() -> None:
    listings = {0: folder(file("model", 5, 100))._replace(leads=5.0), 1: folder(file("model", 7, 100))}
    for free, kept in ((200, True), (199, False)):
        listings[0] = listings[0]._replace(free=copies.RESERVE + free)
        assert bool(copies.plan("newest", listings, 1, [0], before=1)[0].aside) is kept


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 days")]
)
def test_ages(seconds: float, text: str) -> None:
    assert copies.age_of(seconds) == text


OLD, NEW, NONE = folder(file("model", 5)), folder(file("model", 7)), folder()


@pytest.mark.parametrize(
    ("listings", "before", "source"),
    [
        ({0: OLD._replace(leads=1.0), 1: NEW._replace(leads=2.0)}, None, 1),  # the head was lost in the run before
        ({0: NONE._replace(leads=1.0), 1: OLD._replace(leads=2.0)}, None, 1),
        ({0: OLD._replace(leads=3.0), 1: NEW._replace(leads=2.0)}, None, 0),  # marked by hand: these shall count
        ({0: NEW, 1: OLD._replace(leads=2.0)}, None, 0),  # a run without run.resume has saved since
        ({0: OLD, 1: NEW}, None, 0),
        ({0: NONE, 1: OLD, 2: NEW}, None, 2),
        ({0: OLD._replace(leads=1.0), 1: NEW._replace(leads=2.0)}, 0, 0),
        ({0: OLD._replace(leads=1.0), 1: NEW._replace(leads=2.0)}, -1, 0),  # it has copies that are newer than the mark
        ({0: NONE, 1: OLD}, -1, 1),
        ({0: NONE, 1: NONE}, 1, 0),
    ],
)
def test_what_rank_0_saved_last_is_found(listings: dict[int, Listing], before: int | None, source: int) -> None:
    assert copies.of_rank_0(listings, 0, before) == source


def test_a_new_head_is_the_one_whose_folder_counts() -> None:
    listings = {0: folder(file("model", 5)), 1: folder(file("model", 3))}
    assert fetched(copies.plan("head", listings, 1, [0, 1])[0]) == {1: ["model"]}


def test_newest_takes_the_folder_with_the_newest_file() -> None:
    listings = {0: folder(file("model", 5)), 1: folder(file("old", 1), file("model", 7)), 2: folder()}
    planned = copies.plan("newest", listings, 0, [0, 1, 2])
    assert planned[1].is_empty
    assert fetched(planned[0]) == {1: ["old", "model"]} and fetched(planned[2]) == {1: ["old", "model"]}
    equal = {0: folder(file("model", 5)), 1: folder(file("model", 5))}
    assert copies.source_of("newest", equal, 1) == 0


@pytest.mark.parametrize("mode", ["head", "newest"])
def test_a_folder_that_is_half_a_copy_is_not_copied_to_others(mode: str) -> None:
    half = folder(file("a", 1), file("b", 9), incomplete=True)
    assert copies.source_of(mode, {0: half, 1: folder(file("a", 2), file("b", 9))}, 0) == 1
    assert copies.source_of(mode, {0: half, 1: folder(incomplete=True)}, 0) == 0  # rather than to lose all


def test_union_brings_the_shards_of_all_hosts_together_and_of_each_file_the_newest() -> None:
    listings = {
        0: folder(file("meta", 9), file("0.shard", 8)),
        1: folder(file("1.shard", 8), file("meta", 2)),
        2: folder(file("2.shard", 8)),
    }
    planned = copies.plan("union", listings, 0, [0, 1, 2])
    assert fetched(planned[0]) == {1: ["1.shard"], 2: ["2.shard"]}
    assert fetched(planned[1]) == {0: ["meta", "0.shard"], 2: ["2.shard"]}
    assert not any(each.aside for each in planned.values())


def test_hosts_that_have_the_same_file_share_the_work_of_sending_it() -> None:
    same = [file(f"{number}", 5) for number in range(40)]
    planned = copies.plan("union", {0: folder(*same), 1: folder(*same), 2: folder()}, 0, [2])
    assert {source: len(entries) for source, entries in planned[2].files.items()} == {0: 20, 1: 20}


def test_only_files_that_changed_are_copied() -> None:
    listings = {0: folder(file("a", 5), file("b", 6, 20)), 1: folder(file("a", 5), file("b", 6, 19))}
    assert fetched(copies.plan("head", listings, 0, [1])[1]) == {0: ["b"]}


@pytest.mark.parametrize("mode", ["head", "newest", "union"])
def test_a_file_that_an_empty_one_replaces_is_moved_aside(mode: str) -> None:
    cut = folder(file("model", 9, 0), file("log", 9, 5), file("mark", 9, 0))
    listings = {0: cut, 1: folder(file("model", 5), file("log", 5), file("mark", 5, 0))}
    planned = copies.plan(mode, listings, 0, [0, 1])
    assert planned[0].is_empty
    assert planned[1].aside == planned[1].emptied == ("model",)
    assert fetched(planned[1]) == {0: ["model", "log", "mark"]}


def test_a_file_in_the_place_of_a_folder_is_moved_aside() -> None:
    listings = {0: folder(Entry("x", FOLDER), file("x/y")), 1: folder(file("x"))}
    planned = copies.plan("union", listings, 0, [0, 1])
    assert planned[0].is_empty
    assert planned[1].aside == ("x",) and [entry.path for entry in planned[1].folders] == ["x"]
    planned = copies.plan("head", {0: listings[1], 1: listings[0]}, 0, [1])
    assert planned[1].aside == ("x/y", "x")  # what is in a folder comes first


def test_the_space_that_copies_need_counts_what_they_replace_but_for_the_largest() -> None:
    listings = {0: folder(file("a", 2, 100), file("b", 2, 70)), 1: folder(file("a", 1, 100), file("b", 1, 50))}
    planned = copies.plan("head", listings, 0, [1])[1]
    assert (planned.size, planned.space) == (170, 170 - 150 + 100)


PATHS = ["a", "b", "d/a", "d/b", "d/e/a"]
NODES = st.dictionaries(st.sampled_from(PATHS), st.integers(1, 4), max_size=5)


def tree(files: dict[str, int]) -> Listing:
    parents = {"/".join(path.split("/")[:end]) for path in files for end in range(1, path.count("/") + 1)}
    return folder(*(Entry(path, FOLDER) for path in sorted(parents)), *(file(path, at) for path, at in files.items()))


def carried_out(listing: Listing, planned: Copies) -> set[tuple[str, str, int]]:
    left = {entry.path: entry for entry in listing.entries if entry.path not in planned.aside}
    new = [*planned.folders, *planned.links, *(entry for entries in planned.files.values() for entry in entries)]
    left.update((entry.path, entry) for entry in new)
    return {(entry.path, entry.kind, entry.mtime) for entry in left.values()}


@given(st.lists(NODES, min_size=2, max_size=4), st.sampled_from(["head", "newest", "union"]))
def test_afterwards_all_have_the_same_folder_and_every_file_came_from_one_that_has_it(
    files: list[dict[str, int]], mode: str
) -> None:
    listings = {number: tree(each) for number, each in enumerate(files)}
    planned = copies.plan(mode, listings, 0, list(listings))
    after = [carried_out(listings[number], planned[number]) for number in listings]
    assert all(each == after[0] for each in after)
    for each in planned.values():
        for source, entries in each.files.items():
            assert set(entries) <= set(listings[source].entries)
    if mode == "union":
        assert {path for path, kind, _ in after[0] if kind == FILE} == {path for each in files for path in each}


def test_sizes_read_well() -> None:
    assert [copies.size_of(size) for size in (15, 1200, 1_234_567_890, 5e15)] == [
        "15 B",
        "1.2 kB",
        "1.2 GB",
        "5000.0 TB",
    ]
