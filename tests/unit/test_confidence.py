"""How sure a diagnosis calls itself: by the kind of evidence, not by how well words match."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis import transcript
from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.record import RunRecord

ERROR = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/ann/train.py", line 9, in <module>
[rank0]:     train()
[rank0]: """
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x5 and 4x8)\n"


def found(text: str, record: RunRecord | None = None) -> tuple[str, str]:
    first = diagnose(transcript.parse_logs([("train.log", text)]), record).findings[0]
    return first.code, first.confidence


def test_an_exception_that_names_itself_and_that_nobody_caught_is_confident() -> None:
    assert found(ERROR + SHAPES) == ("shape-mismatch", "high")


def test_a_mistake_in_the_users_own_code_is_confident() -> None:
    assert found(ERROR + "KeyError: 'labels'\n") == ("script-exception", "high")


def test_an_error_that_the_user_raised_may_mean_anything() -> None:
    assert found(ERROR + "ValueError: nothing to do\n") == ("script-exception", "medium")


def test_a_mistake_in_a_library_may_have_another_reason() -> None:
    text = ERROR.replace("/home/ann/train.py", "/venv/lib/python3.11/site-packages/lib/x.py")
    assert found(text + "KeyError: 'labels'\n") == ("script-exception", "medium")


def test_two_ranks_that_differ_are_not_confident() -> None:
    other = (ERROR + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n").replace(
        "rank0", "rank1"
    )
    assert found(ERROR + SHAPES + other)[1] == "medium"


def test_what_another_rank_says_much_later_does_not_matter() -> None:
    first = "".join(f"2026-11-22 10:00:00 {line}\n" for line in (ERROR + SHAPES).splitlines())
    later = (ERROR + "torch.OutOfMemoryError: CUDA out of memory.\n").replace("rank0", "rank1")
    later = "".join(f"2026-11-22 10:00:30 {line}\n" for line in later.splitlines())
    assert found(first + later) == ("shape-mismatch", "high")


def test_a_missing_file_on_one_of_two_ranks_is_not_confident() -> None:
    seen = "[rank1]: step 1 loss 2\n" + ERROR + "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'\n"
    assert found(seen)[1] == "medium"


def test_a_missing_file_on_all_ranks_is_confident() -> None:
    one = ERROR + "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'\n"
    assert found(one + one.replace("rank0", "rank1")) == ("dataset-missing", "high")


@pytest.mark.parametrize("what", ["Can't find a valid checkpoint at out/checkpoint-300", "Unable to find '/data/x'"])
def test_a_missing_file_of_which_a_library_tells_in_its_own_words(what: str) -> None:
    assert found(ERROR + f"ValueError: {what}\n")[0] == "dataset-missing"


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
def test_a_library_that_cannot_be_loaded_is_not_missing_data(kind: str) -> None:
    text = ERROR + f"{kind}: libcudnn.so.8: cannot open shared object file: No such file or directory\n"
    logs = [("a.log", text), ("b.log", text.replace("rank0", "rank1"))]
    assert [each.code for each in diagnose(transcript.parse_logs(logs)).findings] == ["script-import-error"]
    logs[1] = ("b.log", "[rank1]: step 1 loss 2\n")
    assert diagnose(transcript.parse_logs(logs)).findings[0].code == "missing-module-on-host"


@pytest.mark.parametrize(
    "line",
    [
        "node1:7:8 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-1 (size 9)",
        "WARNING:root:CUDA out of memory, trying again with half the batch",
        "KeyboardInterrupt",
    ],
)
def test_a_line_that_may_not_have_ended_the_run_is_not_confident(line: str) -> None:
    assert found(f"step 1\n{line}\nnode1 says no more of it\nRuntimeError: it failed\n")[1] != "high"


def test_the_last_words_of_an_argument_parser_are_confident() -> None:
    said = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrate\n"
    end = "torch/distributed/elastic/api.py:10] failed (exitcode: 2) local_rank: 0 (pid: 8) of binary: x\n"
    assert found(said + end) == ("script-bad-argument", "high")


def test_an_exception_after_which_training_goes_on_in_a_log_without_ranks_was_caught() -> None:
    text = ERROR.replace("[rank0]: ", "") + "ModuleNotFoundError: No module named 'apex'\n"
    steps = "".join(f"step {number} loss 2.1\n" for number in range(5))
    last = ERROR.replace("[rank0]: ", "") + "KeyError: 'labels'\n"
    assert found(text + steps + last) == ("script-exception", "high")


def test_an_exception_before_a_restart_was_not_caught() -> None:
    text = ERROR.replace("[rank0]: ", "") + SHAPES
    restart = "torch/distributed/elastic/agent/server/api.py:9] Worker group FAILED. 1/1 attempts left; will restart\n"
    steps = "".join(f"step {number} loss 2.1\n" for number in range(5))
    assert found(text + restart + steps)[0] == "shape-mismatch"


def test_what_the_guards_saw_is_confident() -> None:
    assert found("step 1\n", RunRecord(lost="gpu-2", failed_at=10.0)) == ("host-lost", "high")
