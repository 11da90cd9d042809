"""Errors of the script itself that look like those of launchers, peers or files."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.transcript import parse_logs
from orchestrator.output.finding import Finding

STEPS = "step 1 loss 2.1\nstep 2 loss 2.0\nstep 3 loss 1.9"
PEER_LOST = "RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234"


def find(*texts: str) -> Finding:
    """The first cause of the output of rank 0, rank 1 and so on."""
    lines = [f"[rank{rank}]: {line}" for rank, text in enumerate(texts) for line in text.splitlines()]
    return diagnose(parse_logs([("log", "\n".join(lines))])).findings[0]


def raised(error: str, code: str = "step()", line: int = 9) -> str:
    return f'Traceback (most recent call last):\n  File "/w/train.py", line {line}, in main\n    {code}\n{error}'


def ended(exitcode: int, rank: int) -> str:
    """As torchrun reports it."""
    return (
        f"failed (exitcode: {exitcode}) local_rank: {rank} (pid: 23454) of binary: /v/bin/python\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-28_01:43:43\n  host      : node-a\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {exitcode} (pid: 23454)\n  error_file: <N/A>\n"
    )


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
    built = (
        command_failed("['ninja', '-v']") + chain + raised("RuntimeError: Error building extension 'fused':\nno foo.h")
    )
    found = find(built, raised(PEER_LOST))
    assert (found.code, found.rank) == ("script-exception", 0)
    assert "no foo.h" in found.evidence


@pytest.mark.parametrize("command", ["['torchrun', 'train.py']", "bash run.sh", "['/v/bin/python', 'train.py']"])
def test_a_command_that_runs_the_ranks_only_shows_that_they_failed(command: str) -> None:
    text = raised("KeyError: 'lr'") + "\n" + command_failed(command)
    found = diagnose(parse_logs([("log", text)])).findings[0]
    assert found.evidence[-1] == "KeyError: 'lr'"


DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize("error", ["KeyError: 'val_loss'", "TypeError: not iterable"])
def test_an_error_before_a_barrier_in_finally_is_the_cause(error: str) -> None:
    waited = "RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation"
    found = find(
        raised(waited) + DURING + raised(waited), raised(error) + DURING + raised(waited, "dist.barrier()", 12)
    )
    assert (found.code, found.rank) == ("script-exception", 1)
    assert found.evidence[-1] == error


def test_an_expected_error_before_a_lost_peer_is_not_the_cause() -> None:
    found = find(raised("KeyError: 'cache'") + DURING + raised(PEER_LOST), raised("TypeError: not a tensor"))
    assert (found.rank, found.evidence[-1]) == (1, "TypeError: not a tensor")


def test_the_line_of_a_dataset_that_fails_in_a_worker_of_its_loader_is_shown() -> None:
    passed_on = raised("KeyError: Caught KeyError in DataLoader worker process 1.", "for x, y in loader:", 25)
    own = raised("KeyError: 'label'", 'row["label"]', 22).replace("Traceback", "Original Traceback", 1)
    found = find(f"{passed_on}\n{own}", raised(PEER_LOST))
    assert "line 22" in found.evidence[0]
    assert found.evidence[1] == "KeyError: 'label'"


def test_the_beginning_of_a_chain_is_shown() -> None:
    cause = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    found = find(raised("KeyError: 'lr'", line=7) + cause + raised("RuntimeError: Training failed"))
    assert "line 7" in found.evidence[0]
    assert found.evidence[1:] == ("KeyError: 'lr'", "RuntimeError: Training failed")


@pytest.mark.parametrize(("size", "code"), [("256. TiB", "script-exception"), ("29.8 GiB", "host-oom-killed")])
def test_an_array_that_no_host_could_hold_is_a_mistake_in_its_size(size: str, code: str) -> None:
    error = f"numpy._core._exceptions._ArrayMemoryError: Unable to allocate {size} for an array with shape (9,)"
    assert find(raised(error), raised(PEER_LOST)).code == code


def test_an_allocation_may_also_fail_at_a_limit_of_the_process() -> None:
    found = find(raised("MemoryError"), raised(PEER_LOST))
    assert found.code == "host-oom-killed"
    assert "ulimit -v" in found.message and "ulimit -v" in found.fix
    killed = diagnose(parse_logs([("log", "kernel: Out of memory: Killed process 77 (python)")])).findings[0]
    assert "ulimit" not in killed.message


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "psycopg2.OperationalError: connection to server at 10.0.0.3, port 5432 failed: Connection refused",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
    ],
)
def test_a_service_that_refuses_the_script_is_no_lost_peer(error: str) -> None:
    found = find(raised(error, 'tracker.connect("10.0.0.9")'), raised(PEER_LOST))
    assert (found.code, found.rank) == ("script-exception", 0)


def test_a_rank_that_another_one_refuses_is_not_the_cause() -> None:
    refused = raised("ConnectionRefusedError: [Errno 111] Connection refused", "rank_0.connect()")
    assert find(raised("TypeError: not a tensor"), refused).rank == 0
    killed = "\n".join(f"[rank1]: {line}" for line in refused.splitlines()) + "\n" + ended(-9, 0)
    assert diagnose(parse_logs([("log", killed)])).findings[0].code == "worker-sigkilled"


WEIGHTS_ONLY = "_pickle.UnpicklingError: Weights only load failed. WeightsUnpickler error: Unsupported "


@pytest.mark.parametrize(
    ("error", "code", "fix"),
    [
        (WEIGHTS_ONLY + "global: GLOBAL __main__.Config was not allowed.", "checkpoint-mismatch", "add_safe_globals"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "checkpoint-corrupt", "git lfs pull"),
        (WEIGHTS_ONLY.replace("failed.", "failed.\n") + "operand 149", "checkpoint-corrupt", "weights_only=False"),
        ("zipfile.BadZipFile: File is not a zip file", "checkpoint-corrupt", "Git LFS"),
        ("wandb.errors.UsageError: api_key not configured (no-tty).", "script-exception", "Fix what"),
        (
            "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)",
            "script-exception",
            "Fix",
        ),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "no-gpu-visible", '"gloo"'),
        ("ImportError: attempted relative import beyond top-level package", "script-import-error", "-m PACKAGE.MODULE"),
        (
            "ImportError: cannot import name 'A' from partially initialized module 'b'",
            "script-import-error",
            "each other",
        ),
        ('  File "/w/a.py", line 3\nSyntaxError: invalid syntax', "script-import-error", "python --version"),
    ],
)
def test_the_fix_is_that_of_the_error(error: str, code: str, fix: str) -> None:
    found = find(raised(error), raised(PEER_LOST))
    assert found.code == code
    assert fix in found.fix


@pytest.mark.parametrize("error", ["EOFError", "MemoryError"])
def test_an_exception_without_a_message_is_shown_once(error: str) -> None:
    assert [text for text in find(raised(error), raised(PEER_LOST)).evidence if error in text] == [error]


def test_the_reason_of_a_compiler_is_shown() -> None:
    reason = "RuntimeError: no compiler"
    found = find(raised(f"torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n{reason}"))
    assert reason in found.evidence


def test_a_group_that_one_rank_makes_alone_is_named() -> None:
    made = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    dist.new_group([0, 1])\n'
        '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 6056, in _new_group_with_tag\n'
        "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//1//cpu//0/1"
    )
    assert find(made, raised(PEER_LOST)).code == "barrier-deadlock"


def test_a_silent_end_does_not_show_the_output_of_others() -> None:
    lines = [f"[rank0]: {line}" for line in raised(PEER_LOST).splitlines()]
    found = diagnose(parse_logs([("log", "\n".join([*lines, ended(3, 1)]))])).findings[0]
    assert (found.code, found.rank) == ("unknown", 1)
    assert not any("Connection closed" in text for text in found.evidence)


def test_the_line_of_the_script_that_crashes_is_named() -> None:
    crash = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x00007f01 (most recent call first):\n  File "/w/other.py", line 7 in feed\n\n'
        "Current thread 0x00007f02 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/w/train.py", line 20 in main\n'
    )
    found = diagnose(parse_logs([("log", crash + ended(-11, 1))])).findings[0]
    assert (found.code, found.rank) == ("worker-segfault", 1)
    assert "train.py line 20 in main" in found.message
    assert "PYTHONFAULTHANDLER" not in found.fix


def test_the_last_words_of_a_rank_are_shown_in_a_joined_log() -> None:
    lines = [f"[rank0]: {line}" for line in raised(PEER_LOST).splitlines()]
    words = "val.csv: no label"
    text = "\n".join([STEPS, words, *lines, *lines, ended(1, 1)])
    found = diagnose(parse_logs([("log", text)])).findings[0]
    assert (found.code, found.rank) == ("unknown", 1)
    assert words in found.evidence


def test_the_text_of_a_cpp_exception_is_shown() -> None:
    thrown = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  bad index 7\n"
    found = diagnose(parse_logs([("log", thrown + ended(-6, 1))])).findings[0]
    assert (found.code, found.rank) == ("worker-segfault", 1)
    assert "bad index" in found.evidence[0]


def test_a_header_that_a_compiler_lacks_is_no_data() -> None:
    error = (
        "RuntimeError: Error building extension 'fused':\nfused.cpp:3:10: fatal error: foo.h: No such file or directory"
    )
    assert find(raised(error), raised(PEER_LOST)).code == "script-exception"


def test_an_error_in_a_pool_of_processes_is_shown_without_its_quotes() -> None:
    cause = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    inner = raised("KeyError: 'id'", line=7)
    remote = f'multiprocessing.pool.RemoteTraceback: \n"""\n{inner}\n"""'
    assert find(remote + cause + raised("KeyError: 'id'")).evidence[1:] == ("KeyError: 'id'",)


def test_an_expected_error_before_the_one_that_is_known_is_not_shown() -> None:
    killed = raised("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed.")
    found = find(raised("_queue.Empty", "q.get()") + DURING + killed)
    assert found.code == "worker-sigkilled"
    assert not any("Empty" in text for text in found.evidence)


def test_an_error_without_a_message_is_shown_once() -> None:
    assert find(raised("TimeoutError", "q.get(timeout=5)")).evidence[1:] == ("TimeoutError",)
