"""Errors of the script itself that look like those of launchers, peers or files."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.transcript import parse_logs
from orchestrator.output.finding import Finding

PEER_LOST = "RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234"


def find(*texts: str) -> Finding:
    """The first cause of the output of rank 0, rank 1 and so on."""
    lines = [f"[rank{rank}]: {line}" for rank, text in enumerate(texts) for line in text.splitlines()]
    return diagnose(parse_logs([("log", "\n".join(lines))])).findings[0]


def raised(error: str, code: str = "step()", line: int = 9) -> str:
    return f'Traceback (most recent call last):\n  File "/w/train.py", line {line}, in main\n    {code}\n{error}'


def command_failed(command: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    subprocess.run(command)\n'
        '  File "/usr/lib/python3.11/subprocess.py", line 571, in run\n    raise CalledProcessError(retcode, args)\n'
        f"subprocess.CalledProcessError: Command '{command}' returned non-zero exit status 2."
    )


def test_a_command_of_a_rank_that_fails_is_the_cause() -> None:
    found = find(command_failed("['tar', 'xf', 'data.tar']"), raised(PEER_LOST))
    assert (found.code, found.rank) == ("script-exception", 0)
    assert "'tar'" in found.evidence[1]


def test_an_error_after_a_command_of_a_rank_is_the_cause() -> None:
    """As of torch.utils.cpp_extension, which calls ninja."""
    chain = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    built = command_failed("['ninja', '-v']") + chain + raised("RuntimeError: Error building extension 'fused'")
    found = find(built, raised(PEER_LOST))
    assert (found.code, found.rank) == ("script-exception", 0)


@pytest.mark.parametrize("command", ["['torchrun', 'train.py']", "bash run.sh", "['/v/bin/python', 'train.py']"])
def test_a_command_that_runs_the_ranks_only_shows_that_they_failed(command: str) -> None:
    text = raised("KeyError: 'lr'") + "\n" + command_failed(command)
    found = diagnose(parse_logs([("log", text)])).findings[0]
    assert found.evidence[-1] == "KeyError: 'lr'"


DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize("error", ["KeyError: 'val_loss'", "TypeError: 'NoneType' object is not iterable"])
def test_an_error_before_a_barrier_in_finally_is_the_cause(error: str) -> None:
    waited = "RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation"
    found = find(raised(waited) + DURING + raised(waited), raised(error) + DURING + raised(waited, "dist.barrier()", 12))
    assert (found.code, found.rank) == ("script-exception", 1)
    assert found.evidence[-1] == error


def test_an_expected_error_before_a_lost_peer_is_not_the_cause() -> None:
    found = find(raised("KeyError: 'cache'") + DURING + raised(PEER_LOST), raised("TypeError: not a tensor"))
    assert (found.rank, found.evidence[-1]) == (1, "TypeError: not a tensor")


def test_the_line_of_a_dataset_that_fails_in_a_worker_of_its_loader_is_shown() -> None:
    passed_on = raised("KeyError: Caught KeyError in DataLoader worker process 1.", "for x, y in loader:", 25)
    own = raised("KeyError: 'label'", 'row["label"]', 22).replace("Traceback", "Original Traceback", 1)
    found = find(f"{passed_on}\n{own}", raised(PEER_LOST))
    assert found.evidence[:2] == ('File "/w/train.py", line 22, in main', "KeyError: 'label'")


def test_the_beginning_of_a_chain_is_shown() -> None:
    cause = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    found = find(raised("KeyError: 'lr'", line=7) + cause + raised("RuntimeError: Training failed"))
    assert found.evidence == ('File "/w/train.py", line 7, in main', "KeyError: 'lr'", "RuntimeError: Training failed")


@pytest.mark.parametrize(("size", "code"), [("256. TiB", "script-exception"), ("29.8 GiB", "host-oom-killed")])
def test_an_array_that_no_host_could_hold_is_a_mistake_in_its_size(size: str, code: str) -> None:
    error = f"numpy._core._exceptions._ArrayMemoryError: Unable to allocate {size} for an array with shape (9,)"
    assert find(raised(error), raised(PEER_LOST)).code == code
