"""Exceptions in logs: their chains, their messages, and what is only said about them."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.tracebacks import LoggedException, find_exceptions
from orchestrator.diagnosis.transcript import parse_logs

FRAME = '  File "/w/train.py", line 9, in main\n    train()\n'
START = "Traceback (most recent call last):\n"


def exceptions_of(text: str) -> list[LoggedException]:
    return list(find_exceptions(parse_logs([("train.log", text)])))


def kinds(exception: LoggedException) -> list[str]:
    """The chain, its first exception first."""
    return [each.kind for each in (*exception.chain, exception)]


def test_a_traceback_gives_its_kind_message_and_frames() -> None:
    (exception,) = exceptions_of(START + FRAME + "ValueError: 3 channels\n  expected 1.\nstep 1\n")
    assert (exception.kind, exception.text) == ("ValueError", "3 channels\nexpected 1.")
    assert exception.places == ('File "/w/train.py", line 9, in main',)
    assert exception.code == (2,)  # the line that shows source code


def test_a_log_may_begin_in_the_middle_of_a_traceback() -> None:
    (exception,) = exceptions_of(FRAME + "KeyError: 'labels'\n")
    assert (exception.kind, len(exception.places)) == ("KeyError", 1)


def test_what_is_indented_after_the_end_of_a_cut_off_traceback_belongs_to_none() -> None:
    (exception,) = exceptions_of('    train()\nstep 1\n  File "/w/other.py", line 1, in f\n' + "KeyError: 'labels'\n")
    assert exception.places == ()


def test_the_exception_that_was_handled_comes_first_in_the_chain() -> None:
    during = "During handling of the above exception, another exception occurred:\n"
    cause = "The above exception was the direct cause of the following exception:\n"
    first, second = START + FRAME + "KeyError: 1\n", START + FRAME + "ValueError: no such label\n"
    (handled,) = exceptions_of(first + "\n" + during + "\n" + second)
    (caused,) = exceptions_of(first + "\n" + cause + "\n" + second)
    assert kinds(handled) == kinds(caused) == ["KeyError", "ValueError"]
    assert (handled.during, caused.during) == (True, False)


@pytest.mark.parametrize(
    ("first", "then", "best"),
    [
        ("KeyError: 'imge'", "BrokenPipeError: [Errno 32] Broken pipe", "KeyError"),
        ("AttributeError: no attribute 'bs'", "UnboundLocalError: cannot access local variable 'writer'", "Attribute"),
        ("ValueError: label 7", "AttributeError: 'NoneType' object has no attribute 'close'", "ValueError"),
        ("ModuleNotFoundError: No module named 'apex'", "NameError: name 'ampp' is not defined", "NameError"),
        ("KeyError: 'cached'", "RuntimeError: shapes differ", "RuntimeError"),
        ("RuntimeError: shapes differ", "ValueError: closed", "RuntimeError"),
    ],
)
def test_the_exception_that_shows_the_cause_is_not_that_of_a_cleanup(first: str, then: str, best: str) -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    (exception,) = exceptions_of(START + FRAME + first + "\n" + during + START + FRAME + then + "\n")
    assert exception.sources[0].kind.startswith(best)


def test_an_exception_that_only_passes_on_another_comes_after_it() -> None:
    worker = "Original Traceback (most recent call last):\n" + FRAME + "OSError: [Errno 5] Input/output error\n"
    loader = START + FRAME + "RuntimeError: Caught OSError in DataLoader worker process 0.\n"
    (exception,) = exceptions_of(loader + worker)
    assert kinds(exception) == ["OSError", "RuntimeError"]


def test_a_spawned_process_gives_its_rank_to_the_exception() -> None:
    text = START + FRAME + "torch.multiprocessing.spawn.ProcessRaisedException:\n\n"
    text += "-- Process 3 terminated with the following error:\n" + START + FRAME + "ValueError: 3 channels\n"
    (exception,) = exceptions_of(text)
    assert (exception.line.rank, kinds(exception)[0]) == (3, "ValueError")


def test_an_exception_that_python_ignores_and_one_of_a_thread_are_marked() -> None:
    raised = START + FRAME + "ValueError: 1\n"
    ignored, thread, plain = exceptions_of(
        f"Exception ignored in: <function F at 0x7f>\n{raised}Exception in thread Thread-1 (watch):\n{raised}{raised}"
    )
    assert [each.ignored for each in (ignored, thread, plain)] == [True, False, False]
    assert [each.thread for each in (ignored, thread, plain)] == [False, True, False]


def test_the_tracebacks_of_interleaving_ranks_are_kept_apart() -> None:
    lines = (START + FRAME + "ValueError: {rank}\n").splitlines()
    text = "".join(f"[rank{rank}]: {line.format(rank=rank)}\n" for line in lines for rank in (0, 1))
    assert [(each.line.rank, each.text) for each in exceptions_of(text)] == [(0, "0"), (1, "1")]


def test_a_heading_or_a_log_line_is_no_exception() -> None:
    assert exceptions_of("Error\nTraining Failure: 3\n    ValueError: quoted\nINFO: RuntimeError\n") == []
