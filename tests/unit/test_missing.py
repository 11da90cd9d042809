"""A missing file: what the error names, and what the hosts answer when they are asked for it."""

from __future__ import annotations

import re

import pytest
from golden_files import assert_message

from orchestrator.diagnosis import missing
from orchestrator.diagnosis.missing import advises_resume
from orchestrator.diagnosis.uneven_resume import find_uneven_resume, with_uneven_resume
from orchestrator.output.finding import Finding
from orchestrator.output.lines import Line

GONE = "No such file or directory"
HOSTS = ("a", "b", "c")


def finding(text: str, code: str = "dataset-missing") -> Finding:
    frame = 'File "/home/ann/code/train.py", line 3, in <module>'
    return Finding("error", code, ("b",), "It may be missing.", "Look.", (frame, text), 1, None, "medium")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'", "/data/x.bin"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/my set/x.bin'", "data/my set/x.bin"),
        ("RuntimeError: Unable to find /data/imagenet/train", "/data/imagenet/train"),
        ("OSError: Unable to open file (name = '/m/e_1.v1.h5', errno = 2)", "/m/e_1.v1.h5"),
        ("ValueError: Can't find a valid checkpoint at out/checkpoint-300", "out/checkpoint-300"),
        ("ValueError: no data", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '~/data/d.pt'", None),
        ("urllib.error.URLError: <urlopen error> https://x.org/data/train.tar", None),
        ("ConnectionError: Couldn't reach 'https://huggingface.co/datasets/x/resolve/main/x.py'", None),
    ],
)
def test_the_path_is_taken_from_the_error_and_not_from_its_frames(text: str, path: str | None) -> None:
    assert missing.path_of(finding(text)) == path


@pytest.mark.parametrize("path", ["~/data/d.pt", "~ann/x"])
def test_a_tilde_that_nobody_expanded_is_explained(path: str) -> None:
    gone = finding(f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}")
    assert f"`~` in {path} " in missing.explain_tilde(gone).message


def test_of_other_files_nothing_is_said_about_a_tilde() -> None:
    for text, code in (("... directory: '/data/x'", "dataset-missing"), ("KeyError: '~/x'", "script-exception")):
        assert missing.explain_tilde(finding(text, code)) == finding(text, code)


def test_of_another_cause_no_file_is_looked_for() -> None:
    assert missing.path_of(finding("KeyError: '/data/x'", "script-exception")) is None


def test_a_file_that_some_hosts_have_is_missing_on_the_others() -> None:
    found = missing.check_hosts(finding("..."), "/data/x", {"a": None, "b": GONE, "c": GONE}, HOSTS, "none")
    assert (found.code, found.hosts, found.confidence) == ("file-missing-on-host", ("b", "c"), "high")
    assert re.search(r"/data/x .*\ba\b.*(\[b-c\]|b,c)", found.message)


def test_a_file_that_no_host_has_was_never_there() -> None:
    found = missing.check_hosts(
        finding("...", "file-missing-on-host"), "/data/x", dict.fromkeys(HOSTS, GONE), HOSTS, "none"
    )
    assert (found.code, found.confidence, found.rank) == ("dataset-missing", "high", 1)
    assert_message("file-on-no-host", found.message)


@pytest.mark.parametrize("answers", [{"a": GONE, "b": GONE}, dict.fromkeys(HOSTS), {"a": "Permission denied"}])
def test_where_the_hosts_do_not_settle_it_the_diagnosis_stays(answers: dict[str, str | None]) -> None:
    assert missing.check_hosts(finding("..."), "/data/x", answers, HOSTS, "none") == finding("...")


OF_A = "/home/ann/.local/state/ddp-orch/0123456789ab/out/20261123-150000-abcd/model.pt"


@pytest.mark.parametrize(
    ("path", "resume", "advised"),
    [(OF_A, "none", True), (OF_A, "head", False), ("/data/out/model.pt", "none", False)],
)
def test_an_output_that_only_some_hosts_have_is_copied_by_run_resume(path: str, resume: str, advised: bool) -> None:
    found = missing.check_hosts(finding("..."), path, {"a": None, "b": GONE, "c": GONE}, HOSTS, resume)
    assert (found.code, "run.resume" in found.fix) == ("file-missing-on-host", advised)


def test_an_output_that_no_host_has_is_not_to_be_copied() -> None:
    found = missing.check_hosts(finding("..."), OF_A, dict.fromkeys(HOSTS, GONE), HOSTS, "none")
    assert "run.resume" not in found.fix


def steps(**first: int) -> list[Line]:
    """The output of an attempt 2 in which the ranks of each host begin at a step."""
    return [
        Line(float(number), host, rank, "stdout", 2, f"step:{step + number} loss:1.0")
        for number in range(3)
        for rank, (host, step) in enumerate(first.items())
    ]


@pytest.mark.parametrize(
    ("lines", "whole", "hosts"),
    [
        (steps(a=120, b=0), 200, ("b",)),
        (steps(a=120, b=1, c=0), 200, ("b", "c")),
        (steps(a=120, b=120), 200, None),
        (steps(a=0, b=1), 200, None),  # none has a snapshot, or the steps of each epoch are counted anew
        (steps(a=120, b=0), 3, None),  # of long streams only the end is known
    ],
)
def test_hosts_that_begin_anew_while_others_resume_lack_the_snapshot(
    lines: list[Line], whole: int, hosts: tuple[str, ...] | None
) -> None:
    found = find_uneven_resume(lines, 2, whole)
    assert (found.hosts if found else None) == hosts
    assert found is None or (found.code, "run.resume" in found.fix) == ("file-missing-on-host", True)


@pytest.mark.parametrize(
    ("resume", "empty", "has", "lacks"),
    [
        ("none", (), ["Set run.resume"], ["DDP_ORCH_OUTPUT_DIR"]),
        ("none", ("b",), ["Set run.resume"], ["DDP_ORCH_OUTPUT_DIR"]),
        ("none", ("a", "b"), ["set run.resume", "$DDP_ORCH_OUTPUT_DIR"], []),
        ("head", ("a", "b"), ["run.resume is head", "$DDP_ORCH_OUTPUT_DIR"], ["Set run.resume"]),
        ("union", (), ["run.resume is union", "$DDP_ORCH_OUTPUT_DIR"], ["Set run.resume"]),
    ],
)
def test_the_fix_says_where_a_snapshot_has_to_be_so_that_other_hosts_get_it(
    resume: str, empty: tuple[str, ...], has: list[str], lacks: list[str]
) -> None:
    found = find_uneven_resume(steps(a=120, b=0), 2, 200, empty, resume)
    assert found is not None
    assert all(text in found.fix for text in has) and not any(text in found.fix for text in lacks)
    assert advises_resume([found]) == (resume == "none")


BESIDE = "ddp-orch: a has checkpoints/last.pt beside the code, and the other hosts do not get it; if all ranks load it"
IN_OUTPUTS = "ddp-orch: the output folder of a has files, and run.resume is none, so they stay there; if all ranks load"


@pytest.mark.parametrize("text", [BESIDE, IN_OUTPUTS])
def test_what_the_log_said_at_a_restart_counts_if_only_one_rank_prints_steps(text: str) -> None:
    told = Line(0.0, "a", None, "agent", 1, text)
    silent = [line._replace(text="working") if line.host == "b" else line for line in steps(a=120, b=0)]
    found = find_uneven_resume([told, *silent], 2, 200)
    assert found is not None and (found.code, found.hosts) == ("file-missing-on-host", ("b",))
    uneven, other = finding("...", "uneven-inputs"), finding("...", "shape-mismatch")
    assert [each.code for each in with_uneven_resume([uneven], found)] == [found.code, uneven.code]
    assert with_uneven_resume([other], found) == (other,)
    assert find_uneven_resume([told, *steps(a=120, b=120)], 2, 200) is None


def test_ranks_that_say_at_which_step_they_resume_are_believed() -> None:
    said = [
        Line(0.0, host, rank, "stdout", 1, f"rank {rank}: resumed from last.pt at {unit} {number}")
        for rank, (host, unit, number) in enumerate((("a", "step", 60), ("b", "step", 20)))
    ]
    found = find_uneven_resume([*said, *first_attempt("step", a=[61, 62], b=[])], 1, 200)
    assert found is not None and found.hosts == ("b",) and "step 20 on b" in found.message
    assert find_uneven_resume([said[0], said[0]._replace(host="b")], 1, 200) is None


def test_what_a_continued_run_said_at_its_start_counts_for_its_first_attempt() -> None:
    kept = BESIDE.replace(" beside", " of run 20260101-120000-0001 beside")
    silent = [line._replace(text="working") if line.host == "b" else line for line in steps(a=120, b=0)]
    for text, code in ((kept, "file-missing-on-host"), (BESIDE, None)):
        found = find_uneven_resume([Line(0.0, "a", None, "agent", 2, text), *silent], 2, 200)
        assert (found and found.code) == code
        assert found is None or "checkpoints/last.pt, which b" in found.message


def test_epochs_count_where_no_steps_are_printed() -> None:
    lines = [line._replace(text=line.text.replace("step:", "Epoch ")) for line in steps(a=4, b=0)]
    found = find_uneven_resume(lines, 2, 200)
    assert found is not None and found.hosts == ("b",)
    assert find_uneven_resume([line._replace(text="epoch 0") for line in lines], 2, 200) is None
    lines = [line._replace(text=line.text.replace("step:", "Epoch ")) for line in steps(a=1, b=0)]
    found = find_uneven_resume(lines, 2, 200)
    assert found is not None and found.hosts == ("b",)


def test_hosts_that_resumed_at_different_steps_explain_uneven_inputs_and_nothing_else() -> None:
    uneven, oom = finding("", "file-missing-on-host"), finding("", "cuda-oom")
    inputs, store = finding("", "uneven-inputs"), finding("", "rdzv-store-lost")
    assert with_uneven_resume([store], uneven)[0].code == "file-missing-on-host"
    assert [one.code for one in with_uneven_resume([inputs], uneven)] == ["file-missing-on-host", "uneven-inputs"]
    assert with_uneven_resume([oom], uneven) == (oom, uneven)
    assert with_uneven_resume([oom], None) == (oom,)
    assert with_uneven_resume([oom], uneven, restarted=False) == (oom,)
    assert with_uneven_resume([inputs], uneven, restarted=False)[0].code == "file-missing-on-host"


def first_attempt(unit: str, **numbers: list[int]) -> list[Line]:
    return [
        Line(float(place), host, rank, "stdout", 1, f"{unit} {number} loss=1.0")
        for rank, (host, own) in enumerate(numbers.items())
        for place, number in enumerate(own)
    ] + [Line(9.0, "b", 1, "stderr", 1, "RuntimeError: Connection closed by peer")]


@pytest.mark.parametrize(
    ("lines", "empty", "hosts"),
    [
        (first_attempt("step:", a=[6, 7, 8], b=[0, 1, 2]), (), ("b",)),
        (first_attempt("step:", a=[50, 100, 150], b=[1, 50]), (), None),  # a prints every 50 steps only
        (first_attempt("epoch", a=[3, 3, 3], b=[0, 0]), (), ("b",)),
        (first_attempt("epoch", a=[2, 3, 4], b=[0, 1]), (), ("b",)),
        (first_attempt("step:", a=[40, 41, 42]), ("b",), ("b",)),  # only rank 0 prints steps
        (first_attempt("step:", a=[40, 41, 42]), (), None),
        (first_attempt("step:", a=[40, 41, 42]), ("a", "b"), None),
        (first_attempt("step:", a=[0, 1, 2]), ("b",), None),
        (first_attempt("step:", a=[20, 40, 60]), ("b",), None),
    ],
)
def test_a_new_run_of_a_used_name_may_resume_on_some_hosts_only(
    lines: list[Line], empty: tuple[str, ...], hosts: tuple[str, ...] | None
) -> None:
    found = find_uneven_resume(lines, 1, 200, empty)
    assert (found.hosts if found else None) == hosts


@pytest.mark.parametrize("code", ["uneven-inputs", "barrier-deadlock", "gloo-recv-timeout", "straggler"])
def test_hosts_that_begin_at_different_steps_explain_a_hang(code: str) -> None:
    uneven = finding("", "file-missing-on-host")
    assert with_uneven_resume([finding("", code)], uneven, restarted=False)[0].code == "file-missing-on-host"


def one_epoch_apart(resumed: str, **numbers: list[int]) -> list[Line]:
    """A first attempt in which only node a says that it resumes."""
    said = Line(-1.0, "a", 0, "stdout", 1, resumed)
    return [said, *first_attempt("epoch", **numbers)]


@pytest.mark.parametrize(
    ("lines", "hosts"),
    [
        (one_epoch_apart("resumed from epoch 1", a=[1, 2, 3], b=[0, 1, 2]), ("b",)),
        (one_epoch_apart("resumed from epoch 1", a=[1], b=[0]), ("b",)),
        (one_epoch_apart("resumed from epoch 30", a=[], b=[0]), ("b",)),  # it has nothing left to do
        (one_epoch_apart("resumed from epoch 0", a=[1, 2, 3], b=[1, 2, 3]), None),
        (one_epoch_apart("resuming at epoch 2", a=[1, 2], b=[1, 2]), None),  # it counts from 1 where it says so
        (one_epoch_apart("resuming at epoch 8", a=[], b=[7, 8]), None),  # only rank 0 says so, and only b prints
        (one_epoch_apart("starting", a=[1, 2, 3], b=[0, 1, 2]), ("b",)),  # in step, but one apart
        (one_epoch_apart("starting", a=[1, 3, 5], b=[0, 1, 2, 3, 4, 5]), None),  # a prints every other epoch
        (one_epoch_apart("starting", a=[1, 2, 3], b=[0, 1, 2, 3]), None),
    ],
)
def test_epochs_of_a_first_attempt_that_are_one_apart(lines: list[Line], hosts: tuple[str, ...] | None) -> None:
    found = find_uneven_resume(lines, 1, 200)
    assert (found.hosts if found else None) == hosts


def test_steps_that_are_counted_anew_in_each_epoch_do_not_say_where_a_rank_resumed() -> None:
    said = Line(-1.0, "a", 0, "stdout", 1, "resumed at step 60")
    assert find_uneven_resume([said, *first_attempt("step:", a=[0, 1, 2], b=[0, 1, 2])], 1, 200) is None
    assert find_uneven_resume([said, *first_attempt("step:", a=[61, 62], b=[0, 1])], 1, 200) is not None
    assert find_uneven_resume([said, *first_attempt("step:", a=[60], b=[40, 50])], 1, 200) is not None


@pytest.mark.parametrize(
    ("lines", "attempt", "resume", "hosts"),
    [
        (first_attempt("working", a=[1], b=[1]), 1, "none", ("b",)),  # none prints a step
        (first_attempt("epoch", a=[2, 2, 2]), 1, "none", ("b",)),  # only rank 0 does
        (first_attempt("epoch", b=[0, 1]), 1, "none", ("b",)),  # rank 0 has nothing left to do
        (first_attempt("epoch", a=[2, 2], b=[0, 0]), 1, "none", ("b",)),
        (first_attempt("epoch", a=[1, 1], b=[0, 0]), 1, "none", ("b",)),
        (first_attempt("epoch", a=[0, 0]), 1, "none", None),  # it began anew
        (first_attempt("step:", a=[0, 1]), 1, "none", None),
        (first_attempt("epoch", b=[2, 3]), 1, "none", None),  # it found the snapshot elsewhere
        (first_attempt("epoch", a=[2, 2], b=[2, 2]), 1, "none", None),
        (first_attempt("working", a=[1], b=[1]), 1, "head", None),
        (first_attempt("working", a=[1], b=[1]), 2, "none", None),
    ],
)
def test_a_run_whose_hosts_began_with_different_outputs_may_have_resumed_on_some_only(
    lines: list[Line], attempt: int, resume: str, hosts: tuple[str, ...] | None
) -> None:
    lines = [line._replace(attempt=attempt) for line in lines]
    found = find_uneven_resume(lines, attempt, 200, ("b",), resume, {"a": True, "b": False})
    assert (found.hosts if found else None) == hosts
    uneven = finding("", "uneven-inputs")
    first, *_ = with_uneven_resume([uneven], found, restarted=False)
    assert (first.code == "file-missing-on-host", "run.resume" in first.fix) == (hosts is not None,) * 2
    for same in (True, False):
        assert find_uneven_resume(lines[:1], attempt, 200, (), resume, {"a": same, "b": same}) is None
