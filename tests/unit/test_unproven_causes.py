"""What a log does not prove: a host that was stopped before it spoke, and a signal that ddp-orch itself has sent."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.record import RunRecord
from orchestrator.diagnosis.transcript import LogLine

MISSING = "ModuleNotFoundError: No module named 'accelerate'"
TERMED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: 15"


def first_cause(*texts: tuple[str, float, str], agent: bool = False) -> str:
    """`texts`: host, time and text of each line."""
    lines = [
        LogLine(
            number, host, host, None if agent else int(host[-1]), at, text, None, agent or text.startswith("ddp-orch")
        )
        for number, (host, at, text) in enumerate(texts)
    ]
    return diagnose(lines, RunRecord(hosts=("gpu-0", "gpu-1"))).findings[0].code


@pytest.mark.parametrize(
    ("other", "code"),
    [((), "script-import-error"), ((("gpu-1", 2.0, "epoch 0 loss 0.5"),), "missing-module-on-host")],
)
def test_a_module_is_missing_on_some_hosts_if_another_one_got_further(
    other: tuple[tuple[str, float, str], ...], code: str
) -> None:
    trace = ("gpu-0", 1.0, "Traceback (most recent call last):"), ("gpu-0", 1.0, '  File "t.py", line 1, in <module>')
    assert first_cause(*trace, ("gpu-0", 1.0, MISSING), *other) == code


@pytest.mark.parametrize(
    ("signal_at", "code"), [(20.0, "host-lost"), (5.0, "sigterm-preempted")], ids=["our own", "somebody's"]
)
def test_a_signal_after_we_began_to_stop_is_our_own(signal_at: float, code: str) -> None:
    lines = [
        ("gpu-1", 12.0, "ddp-orch: no message from the head (gpu-0) for 8 s: stopping; the hosts that are left elect"),
        ("gpu-1", signal_at, TERMED),
        ("gpu-1", 25.0, "ddp-orch: first failure: gpu-0: head lost; stopping all nodes"),
    ]
    if code == "sigterm-preempted":
        lines = lines[1:2]
    assert first_cause(*lines, agent=True) == code
