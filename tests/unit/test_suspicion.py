"""Which nodes are suspect, and which are lost."""

from __future__ import annotations

import pytest

from orchestrator.node.gang.suspicion import Judgement, Silence, choose_helpers, judge

LEASE = 8.0
HEARD, SUSPECT, LOST = Judgement.HEARD, Judgement.SUSPECT, Judgement.LOST


@pytest.mark.parametrize(
    ("silences", "judgements"),
    [
        pytest.param([0.0], [HEARD], id="heard a moment ago"),
        pytest.param([4.0, 0.0], [HEARD, HEARD], id="silent for half a lease"),
        pytest.param([4.1, 0.0], [SUSPECT, HEARD], id="for a little longer"),
        pytest.param([8.0, 0.0], [SUSPECT, HEARD], id="for a whole lease"),
        pytest.param([8.1, 0.0], [LOST, HEARD], id="for longer than a lease"),
        pytest.param([8.1, 8.1, 0.0], [LOST, LOST, HEARD], id="two of three nodes"),
        pytest.param([8.1], [LOST], id="the only other node: its loss is not put off"),
        pytest.param([8.1, 4.1], [SUSPECT, SUSPECT], id="all at once: it may be this host"),
        pytest.param([16.0, 12.0, 15.9], [SUSPECT] * 3, id="all, for less than two leases"),
        pytest.param([16.1, 12.0], [LOST, SUSPECT], id="all, for longer than two leases"),
        pytest.param([8.1, 3.9], [LOST, HEARD], id="the other one was heard since"),
        pytest.param([], [], id="nobody left"),
    ],
)
def test_silence(silences: list[float], judgements: list[Judgement]) -> None:
    known = [Silence(node, seconds) for node, seconds in enumerate(silences, 1)]
    assert judge(known, LEASE) == dict(enumerate(judgements, 1))


def test_a_refusal_is_proof_at_once_and_no_reason_to_wait_for_the_others() -> None:
    assert judge([Silence(1, 0.2, refused=True), Silence(2, 0.2)], LEASE) == {1: LOST, 2: HEARD}
    assert judge([Silence(1, 8.1, refused=True), Silence(2, 8.1)], LEASE) == {1: LOST, 2: LOST}


def test_nothing_is_put_off_where_the_nodes_do_not_wait_for_the_head() -> None:
    silences = [Silence(1, 8.1), Silence(2, 8.1)]
    assert judge(silences, LEASE) == {1: SUSPECT, 2: SUSPECT}
    assert judge(silences, LEASE, nodes_wait=False) == {1: LOST, 2: LOST}


@pytest.mark.parametrize("lease", [2.0, 8.0, 600.0])
def test_all_limits_follow_the_lease(lease: float) -> None:
    def judgement(seconds: float) -> Judgement:
        return judge([Silence(1, seconds), Silence(2, 0.0)], lease)[1]

    assert [judgement(part * lease) for part in (0.49, 0.51, 0.99, 1.01)] == [HEARD, SUSPECT, SUSPECT, LOST]


@pytest.mark.parametrize(
    ("suspect", "silences", "helpers"),
    [
        pytest.param(1, {1: 5.0}, (), id="no other node"),
        pytest.param(1, {1: 5.0, 2: 0.0, 3: 0.0}, (2, 3), id="all others"),
        pytest.param(2, {n: 5.0 if n == 2 else 0.0 for n in range(1, 9)}, (3, 4, 5), id="at most three"),
        pytest.param(7, {n: 5.0 if n == 7 else 0.0 for n in range(1, 9)}, (8, 1, 2), id="in a circle"),
        pytest.param(1, {1: 5.0, 2: 5.0, 3: 0.0}, (3,), id="no other suspect"),
    ],
)
def test_helpers(suspect: int, silences: dict[int, float], helpers: tuple[int, ...]) -> None:
    known = [Silence(node, seconds) for node, seconds in silences.items()]
    assert choose_helpers(known, suspect, LEASE) == helpers


def test_a_node_that_refuses_connections_is_no_helper() -> None:
    known = [Silence(1, 5.0), Silence(2, 0.0, refused=True), Silence(3, 0.0)]
    assert choose_helpers(known, 1, LEASE) == (3,)
