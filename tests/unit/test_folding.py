"""Equal lines of many ranks as one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.output.folding import START_LINES, START_WINDOW, WINDOW, FirstLinesFolder, Folder, ranges
from orchestrator.output.lines import Line


def line(text: str, rank: int | None = 0, at: float = 0.0, host: str = "node-0", stream: str = "stdout") -> Line:
    return Line(at, host, rank, stream if rank is not None else "agent", 1, text)


def shown(folded: Sequence[Line]) -> list[str]:
    return [f"{line.tag} {line.text}" for line in folded]


def fold(texts: dict[int, str]) -> list[str]:
    folder = Folder(len(texts))
    return shown([*folder.push([line(text, rank) for rank, text in texts.items()], 0.0), *folder.flush(0.0)])


def test_equal_lines_are_shown_once_and_outliers_by_themselves() -> None:
    texts = dict.fromkeys(range(64), "epoch done")
    assert fold(texts) == ["[0-63] epoch done"]
    assert fold({**texts, 7: "loss is nan"}) == ["[0-6,8-63] epoch done", "[7] loss is nan"]


def test_numbers_that_differ_are_shown_as_a_range() -> None:
    losses = {rank: f"step:120 loss:{3.21 + rank / 100:.2f} lr:1e-4" for rank in range(5)}
    assert fold(losses) == ["[0-4] step:120 loss:3.21..3.25 lr:1e-4"]
    assert fold({0: "delta -3 at 0x1f", 1: "delta -20 at 0xa"}) == ["[0-1] delta -20..-3 at 0xa..0x1f"]


def test_a_rank_in_a_line_is_a_number_too_but_an_address_is_none() -> None:
    assert fold({rank: f"[rank{rank}]: ready" for rank in range(3)}) == ["[0-2] [rank0..2]: ready"]
    assert fold({0: "from 10.0.0.1", 1: "from 10.0.0.2"}) == ["[0] from 10.0.0.1", "[1] from 10.0.0.2"]


def test_not_a_number_is_an_outlier() -> None:
    assert fold({0: "loss:1.5", 1: "loss:nan", 2: "loss:1.7"}) == ["[0,2] loss:1.5..1.7", "[1] loss:nan"]


def test_a_line_said_twice_is_shown_twice() -> None:
    folder = Folder(2)
    lines = [line("saved", 0), line("saved", 0), line("saved", 1), line("saved", 1)]
    assert shown(folder.push(lines, 0.0)) == ["[0-1] saved", "[0-1] saved"]


def test_steps_of_ranks_that_run_apart_are_not_mixed() -> None:
    folder = Folder(2)
    folded = folder.push([line("step 1", 0), line("step 2", 0), line("step 1", 1), line("step 2", 1)], 0.0)
    assert shown(folded) == ["[0-1] step 1", "[0-1] step 2"]


def test_a_line_waits_for_the_other_ranks_and_not_for_ever() -> None:
    folder = Folder(2)
    assert folder.push([line("hello", 1)], 0.0) == []
    assert folder.push([], WINDOW / 2) == []
    assert shown(folder.push([], WINDOW)) == ["[1] hello"]
    assert shown(folder.push([line("hello", 0)], 2 * WINDOW)) == []
    assert shown(folder.flush(0.0)) == ["[0] hello"]


def test_agents_lines_are_folded_by_host_and_streams_are_kept_apart() -> None:
    folder = Folder(2)
    lines = [line("closing", None, host=f"gpu-{number}") for number in (1, 2, 3)]
    lines += [line("closing", 0), line("closing", 1, stream="stderr")]
    assert sorted(shown([*folder.push(lines, 0.0), *folder.flush(0.0)])) == [
        "[0] closing",
        "[1] closing",
        "gpu-[1-3]:agent closing",
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b 1", "b 2", "c -1.5e3", ""])), max_size=40))
def test_no_line_is_lost(said: list[tuple[int, str]]) -> None:
    folder = Folder(4)
    folded = [each for number, (rank, text) in enumerate(said) for each in folder.push([line(text, rank)], number / 7)]
    folded += folder.flush(0.0)
    counted = sum(len(expand(each.tag)) for each in folded)
    assert counted == len(said)
    for rank in range(4):
        kinds = [each.text[:1] for each in folded if rank in expand(each.tag)]
        assert kinds == [text[:1] for who, text in said if who == rank]


def test_equal_first_lines_are_folded_and_later_ones_are_not() -> None:
    folder = FirstLinesFolder(2)
    assert shown(folder.push([line("start rank:0", 0), line("start rank:1", 1)], 0.0)) == ["[0-1] start rank:0..1"]
    assert folder.push([line("config", 0)], 0.1) == []
    assert shown(folder.push([line("step 1", 0)], 0.1 + START_WINDOW)) == [" config", " step 1"]
    later = [line("step 2", 0), line("ddp-orch: waiting", None)]
    assert folder.push(later, 0.7) == later


def test_a_rank_that_prints_much_is_folded_only_at_its_start() -> None:
    folder = FirstLinesFolder(2)
    for number in range(START_LINES):
        assert [each.tag for each in folder.push([line(f"a {number}", 0), line(f"a {number}", 1)], 0.0)] == ["[0-1]"]
    lines = [line("b", 0), line("b", 1)]
    assert folder.push(lines, 0.0) == lines


def test_the_lines_of_a_traceback_are_not_folded() -> None:
    folder = FirstLinesFolder(2)
    texts = ["Traceback (most recent call last):", "ValueError: 1"]
    lines = [line(text, rank, stream="stderr") for rank in (0, 1) for text in texts]
    assert folder.push(lines, 0.0) == lines


def test_the_first_lines_of_the_next_attempt_are_folded_again() -> None:
    folder = FirstLinesFolder(2)
    folder.push([line("a", 0), line("only rank 0", 0)], 0.0)
    folder.push([], START_WINDOW)
    again = [line("a", rank)._replace(attempt=2) for rank in (0, 1)]
    assert shown(folder.push(again, 1.0)) == ["[0-1] a"]


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from(["a", "b 1", "b 2", "Traceback (most recent"])),
        max_size=60,
    )
)
def test_the_order_of_each_ranks_first_lines_is_kept(printed: list[tuple[int | None, str]]) -> None:
    folder = FirstLinesFolder(3)
    lines_out = [
        each for number, (rank, text) in enumerate(printed) for each in folder.push([line(text, rank)], number / 9)
    ]
    lines_out += folder.flush(0.0)
    for rank in (0, 1, 2, None):
        kinds = [each.text[0] for each in lines_out if (rank in expand(each.tag) if each.tag else each.rank == rank)]
        assert kinds == [text[0] for who, text in printed if who == rank]


def expand(name: str) -> list[int]:
    found: list[int] = []
    for part in name.strip("[]").split(","):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


@given(st.sets(st.integers(0, 50), min_size=1))
def test_ranges_name_all_ranks_and_no_other(ranks: set[int]) -> None:
    assert expand(ranges(sorted(ranks))) == sorted(ranks)
