"""The bundled trainer, ended at random steps again and again, ends where it would have ended undisturbed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from e2e.trainer_ranks import outputs_of, started  # noqa: E402

from .trial import chance  # noqa: E402

INTERRUPTIONS = 5
STEPS = 88
FLAGS = ("-m", "trainer", "--epochs=8", "--log-every=1", "--save-every=3", "--track=none")


def final(folder: Path) -> dict[str, object]:
    newest = max(folder.glob("step-*.pt"))
    assert f"-{STEPS:09d}-" in newest.name
    state: dict[str, object] = torch.load(newest, weights_only=True)
    return state


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with started(2, folder, *FLAGS) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return final(folder / "out")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_interrupted_at_random_steps_ends_bit_for_bit_the_same(
    undisturbed: dict[str, object], tmp_path: Path, number: signal.Signals
) -> None:
    dice = chance(number.name)
    moments = sorted(dice.sample(range(4, STEPS - 6), INTERRUPTIONS))
    print(f"{number.name} at steps {moments}")
    for moment in moments:
        with started(2, tmp_path, *FLAGS) as ranks:
            assert ranks[0].stdout
            for line in ranks[0].stdout:
                said = line.split(" step:")
                if len(said) > 1 and "loss:" in line and int(said[1].split()[0]) >= moment:
                    dice.choice(ranks).send_signal(number)
                    break
            outputs_of(ranks)
        if number == signal.SIGTERM:
            assert [rank.returncode for rank in ranks] == [0, 0]
        else:
            assert -signal.SIGKILL in [rank.returncode for rank in ranks]
    with started(2, tmp_path, *FLAGS) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "resumed " in outputs[0]
    last = final(tmp_path / "out")
    for part in ("model", "optimizer"):
        assert_same(undisturbed[part], last[part])


def assert_same(one: object, other: object) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict) and one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert isinstance(other, list) and len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other
