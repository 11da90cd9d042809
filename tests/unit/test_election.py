"""The rules of the election, each once. What follows from all of them together: test_election_model.py."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestrator.node.gang import election
from orchestrator.node.gang.election import step
from orchestrator.node.gang.election_state import (
    SHORTER,
    Ack,
    Action,
    Admitted,
    Answer,
    Ask,
    Ballot,
    Beat,
    Config,
    Copy,
    Entry,
    Message,
    Permit,
    Proposed,
    Received,
    Resigned,
    Role,
    Save,
    Send,
    Stamp,
    State,
    Tick,
    Write,
    first_ballot,
)

LEASE = 8.0
BEGAN = 100.0
LATER = BEGAN + LEASE + 0.01  # a lease has passed since a node began
A, B, C = Entry(1, "a"), Entry(1, "b"), Entry(2, "c")


def node(
    number: int, log: tuple[Entry, ...] = (A,), voters: int = 3, witness: int | None = None, elects: bool = True
) -> State:
    candidates = tuple(other for other in range(voters) if other != witness)
    config = Config(number, voters, candidates, LEASE, stop_window=3.0, elects=elects)
    return election.begin(config, first_ballot(config), log, f"boot of {number}", BEGAN)


def receive(state: State, sender: int, message: Message, at: float = BEGAN + 1) -> tuple[State, tuple[Action, ...]]:
    return step(state, Received(sender, message, at))


def sent(actions: tuple[Action, ...]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Send)]


def beat(head: State, to: int, at: float = BEGAN + 1) -> Beat:
    return election.beat_for(head, to, at)


def ack(head: State, sender: int, sent_at: float, epoch: int = 1) -> Ack:
    return Ack(epoch, Stamp(head.boot, sent_at), Stamp(f"boot of {sender}", sent_at), head.length)


def ask(log: tuple[Entry, ...] = (A,), epoch: int = 2, trial: bool = False) -> Ask:
    copy = node(1, log)
    return Ask(epoch, trial, 1, copy.last_epoch, copy.length, copy.digests[-1], 0)


def answer(actions: tuple[Action, ...]) -> Answer:
    return next(message for message in sent(actions) if isinstance(message, Answer))


def candidate(log: tuple[Entry, ...] = (A,), voters: int = 3) -> State:
    """Node 1, in the round in which it asks for votes for epoch 2."""
    state, _ = step(node(1, log, voters), Tick(BEGAN + 3 * LEASE))
    for other in range(2, 2 + voters // 2):
        state, _ = receive(state, other, Answer(1, True, state.round, True), BEGAN + 3 * LEASE)
    assert state.role is Role.CANDIDATE
    return state


def winner(log: tuple[Entry, ...] = (A,)) -> State:
    state = candidate(log)
    state, _ = receive(state, 2, Answer(2, False, state.round, True), BEGAN + 3 * LEASE)
    assert state.role is Role.HEAD
    return state


# --- the head's authority, and permits


@pytest.mark.parametrize(
    ("voters", "acknowledged", "base"),
    [(3, {1: 110.0}, 110.0), (3, {1: 110.0, 2: 112.0}, 112.0), (4, {1: 110.0, 2: 112.0}, 110.0), (5, {1: 110.0}, None)],
)
def test_authority_counts_from_the_newest_beat_that_a_majority_has_acknowledged(
    voters: int, acknowledged: dict[int, float], base: float | None
) -> None:
    head = node(0, voters=voters)
    for number, at in acknowledged.items():
        head, _ = receive(head, number, ack(head, number, at), 113.0)
    if base is None:
        assert not election.has_authority(head, 113.0)
    else:
        assert election.authority_until(head, 113.0) == base + SHORTER * LEASE
        assert head.permit_until == base + SHORTER * LEASE


def test_an_acknowledgement_of_a_beat_from_before_a_reboot_gives_no_authority() -> None:
    head = node(0)
    old = Ack(1, Stamp("an earlier boot", 5000.0), Stamp("boot of 1", 5.0), 1)
    head, actions = receive(head, 1, old)
    assert not election.has_authority(head, BEGAN + 1)
    assert not any(isinstance(action, Permit) for action in actions)


@pytest.mark.parametrize(
    ("echo", "until"),
    [(None, None), (Stamp("boot of 1", 103.0), 108.0), (Stamp("an earlier boot", 5000.0), None)],
)
def test_a_permit_counts_from_the_stamp_that_comes_back(echo: Stamp | None, until: float | None) -> None:
    message = beat(node(0), 1)._replace(echo=echo, remaining=5.0)
    _, actions = receive(node(1), 0, message, at=107.0)
    assert [action.until for action in actions if isinstance(action, Permit)] == ([] if until is None else [until])


@pytest.mark.parametrize(
    ("acknowledged", "stamped", "remaining"),
    [
        ([(2, 110.0)], 110.5, SHORTER * LEASE - 0.5),
        ([(2, 110.0), (2, 112.0)], 110.5, SHORTER * LEASE),  # a node that is silent gets no more than a lease
        ([], 110.5, 0.0),
    ],
)
def test_what_remains_to_a_node_counts_from_the_arrival_of_its_stamp(
    acknowledged: list[tuple[int, float]], stamped: float, remaining: float
) -> None:
    head = node(0, voters=5)
    head, _ = receive(head, 1, ack(head, 1, 50.0)._replace(stamp=Stamp("boot of 1", 7.0)), stamped)
    for number, at in acknowledged:
        for other in (number, number + 1):
            head, _ = receive(head, other, ack(head, other, at), at)
    message = beat(head, 1, 113.0)
    assert message.echo == Stamp("boot of 1", 7.0)
    assert message.remaining == remaining


def test_a_node_that_was_silent_gets_a_beat_at_once() -> None:
    head = node(0)
    head, _ = receive(head, 1, ack(head, 1, 101.0), 101.0)
    soon, late = 101.0 + head.config.beat, 101.0 + 3 * head.config.beat
    assert not sent(receive(head, 1, ack(head, 1, soon), soon)[1])
    head, actions = receive(head, 1, ack(head, 1, late), late)
    (answer,) = sent(actions)
    assert isinstance(answer, Beat) and answer.echo == Stamp("boot of 1", late)


def test_an_order_that_comes_after_its_permit_has_lapsed_is_not_valid() -> None:
    order = beat(node(0), 1)._replace(echo=Stamp("boot of 1", 103.0), remaining=5.0)
    follower, _ = receive(node(1), 0, order, at=104.0)
    assert election.order_is_valid(follower, order, 107.9)
    assert not election.order_is_valid(follower, order, 108.0)


def test_the_newest_stamp_of_a_node_goes_back_to_it() -> None:
    head = node(0)
    head, _ = receive(head, 1, ack(head, 1, 105.0))
    head, _ = receive(head, 1, ack(head, 1, 104.0))  # came late
    assert beat(head, 1).echo == Stamp("boot of 1", 105.0)


def test_a_new_head_starts_no_attempt_within_the_stop_window() -> None:
    head = winner()
    head, _ = receive(head, 2, ack(head, 2, head.won_at, 2), head.won_at)
    head, _ = step(head, Proposed("c", head.won_at))
    after = head.won_at + 3.0 / SHORTER
    head, _ = receive(head, 2, ack(head, 2, after, 2), after)
    assert not election.may_start_attempts(head, after - 0.01)
    assert election.may_start_attempts(head, after)


# --- votes


@pytest.mark.parametrize(("at", "granted"), [(BEGAN + LEASE - 0.01, False), (LATER, True)])
def test_a_vote_is_given_a_lease_after_the_last_beat_or_the_begin(at: float, granted: bool) -> None:
    _, actions = receive(node(2), 1, ask(), at)
    assert answer(actions).granted is granted


def test_a_beat_begins_the_lease_again() -> None:
    voter, _ = receive(node(2), 0, beat(node(0), 2), at=LATER)
    _, actions = receive(voter, 1, ask(), LATER + LEASE - 0.01)
    assert not answer(actions).granted


def test_a_head_votes_a_lease_after_the_beat_that_its_authority_counts_from() -> None:
    head = node(0)
    head, _ = receive(head, 2, ack(head, 2, 120.0), 120.0)
    assert not answer(receive(head, 1, ask(), 120.0 + LEASE - 0.01)[1]).granted
    assert answer(receive(head, 1, ask(), 120.0 + LEASE)[1]).granted


def test_a_node_votes_once_in_an_epoch_and_saves_that_before_it_answers() -> None:
    voter, actions = receive(node(2), 1, ask(), LATER)
    assert actions == (Save(Ballot(2, 1, False)), Send(1, Answer(2, False, 1, True)))
    assert not answer(receive(voter, 0, ask(), LATER)[1]).granted
    assert answer(receive(voter, 1, ask(), LATER)[1]).granted  # the answer was lost


def test_a_trial_changes_nothing() -> None:
    voter = node(2)
    after, actions = receive(voter, 1, ask(trial=True), LATER)
    assert answer(actions).granted
    assert after == voter


@pytest.mark.parametrize("log", [(), (A,), (A, A)])
def test_a_candidate_with_an_older_log_gets_no_vote_but_a_copy(log: tuple[Entry, ...]) -> None:
    _, actions = receive(node(2, (A, B, C)), 1, ask(log), LATER)
    assert not answer(actions).granted
    copy = sent(actions)[1]
    assert isinstance(copy, Copy)
    trying, _ = step(node(1, log), Tick(BEGAN + 3 * LEASE))
    after, written = receive(trying, 2, copy)
    assert after.log == (A, B, C)
    assert written


@pytest.mark.parametrize("log", [(A, B, B), (A, C), (A, B, C)])
def test_a_newer_log_is_not_replaced_by_a_copy(log: tuple[Entry, ...]) -> None:
    source = node(2, (A, B))
    copy = Copy(1, 1, 2, 0, "", source.log)
    trying, _ = step(node(1, log), Tick(BEGAN + 3 * LEASE))
    assert receive(trying, 2, copy) == (trying, ())


def test_nobody_votes_for_a_node_that_does_not_know_of_the_run() -> None:
    _, actions = receive(node(2, ()), 1, ask(()), LATER)
    assert not answer(actions).granted


def test_candidates_try_in_their_order_and_a_witness_never() -> None:
    first, second, witness = (node(number, voters=4, witness=3) for number in (1, 2, 3))
    assert first.campaign_at < second.campaign_at < witness.campaign_at == float("inf")


def test_a_node_that_has_just_begun_lets_those_try_first_that_know_why_there_is_no_head() -> None:
    """From the end of the lease in which it does not vote, each of the others can ask once more."""
    begun = node(1, voters=4)
    head = node(0, voters=4)
    head, _ = receive(head, 1, ack(head, 1, BEGAN - 1), BEGAN - 1)
    sent_before, _ = receive(begun, 0, beat(head, 1, at=BEGAN), at=LATER)
    for other in (node(number, voters=4).config for number in (0, 2, 3)):
        for state in (begun, sent_before):
            refused_until = state.heard_at + LEASE + other.round_length
            assert state.due_at > other.next_turn(refused_until) + other.round_length


def test_a_node_is_due_when_a_tick_changes_something() -> None:
    follower, head, asking = node(1), node(0), candidate()
    for state in (follower, head, asking):
        early, _ = step(state, Tick(state.due_at - 0.01))
        assert early == state
        assert step(state, Tick(state.due_at))[0] != state


def test_a_majority_of_all_nodes_makes_a_head() -> None:
    state = candidate(voters=5)
    at = BEGAN + 3 * LEASE
    state, _ = receive(state, 2, Answer(2, False, state.round, True), at)
    state, _ = receive(state, 2, Answer(2, False, state.round, True), at)
    assert state.role is Role.CANDIDATE
    state, actions = receive(state, 3, Answer(2, False, state.round, True), at)
    assert state.role is Role.HEAD
    assert actions[0] == Save(Ballot(2, 1, True))


def test_answers_of_another_round_do_not_count() -> None:
    state = candidate()
    state, _ = receive(state, 2, Answer(2, False, state.round - 1, True), BEGAN + 3 * LEASE)
    assert state.role is Role.CANDIDATE


# --- epochs


def test_a_head_that_hears_of_a_later_epoch_steps_down() -> None:
    head, actions = receive(node(0), 2, ack(node(0), 2, 100.5, epoch=2))
    assert head.role is Role.FOLLOWER
    assert actions == (Save(Ballot(2, None, False)),)


def test_a_head_that_hears_no_majority_for_two_leases_resigns() -> None:
    head = node(0)
    head, _ = receive(head, 1, ack(head, 1, 110.0), 110.0)
    assert step(head, Tick(110.0 + 2 * LEASE))[0].role is Role.HEAD
    after, actions = step(head, Tick(110.1 + 2 * LEASE))
    assert after.role is Role.FOLLOWER
    assert actions == (Save(Ballot(1, 0, False)),)


def test_a_head_that_resigns_votes_and_is_no_candidate() -> None:
    head, actions = step(node(0), Resigned(BEGAN + 1))
    assert head.role is Role.FOLLOWER and actions == (Save(Ballot(1, 0, leads=False)),)
    assert not election.has_authority(head, BEGAN + 1) and head.due_at == float("inf")
    head, actions = step(head, Tick(BEGAN + 1000))
    assert (head.role, actions) == (Role.FOLLOWER, ())
    head, actions = receive(head, 1, ask(), BEGAN + 1000)
    assert answer(actions).granted
    assert step(head, Tick(BEGAN + 2000))[0].role is Role.FOLLOWER
    follower = node(1)
    assert step(follower, Resigned(BEGAN + 1)) == (follower, ())


def test_a_beat_of_an_earlier_epoch_is_refused_with_the_later_one() -> None:
    voter, _ = receive(node(2), 1, ask(), LATER)
    after, actions = receive(voter, 0, beat(node(0), 2), LATER)
    assert after == voter
    assert [message.epoch for message in sent(actions)] == [2]


def test_a_recorder_that_is_started_again_on_the_head_leads_as_before() -> None:
    won = winner()
    again = election.begin(won.config, won.ballot, won.log, won.boot, BEGAN + 30)
    assert again.role is Role.HEAD
    assert again.ballot.epoch == 2
    assert not election.has_authority(again, BEGAN + 30)


# --- the log


def test_an_entry_is_committed_when_a_majority_has_it() -> None:
    head = node(0, (), voters=5)
    head, _ = receive(head, 1, ack(head, 1, 101.0))
    head, _ = receive(head, 2, ack(head, 2, 101.0))
    head, actions = step(head, Proposed("a", 101.0))
    assert actions[0] == Write(0, (A,))
    head, _ = receive(head, 1, ack(head, 1, 102.0))
    assert head.committed == 0
    head, _ = receive(head, 2, ack(head, 2, 102.0))
    assert head.committed == 1


def test_entries_of_earlier_epochs_are_committed_with_one_of_the_heads_own() -> None:
    head = winner((A, B))
    head, _ = receive(head, 2, ack(head, 2, head.won_at, 2), head.won_at)
    assert head.committed == 0
    head, _ = step(head, Proposed("c", head.won_at))
    head, _ = receive(head, 2, ack(head, 2, head.won_at + 1, 2), head.won_at + 1)
    assert head.committed == 3
    assert election.is_current(head)


def test_a_head_without_authority_adds_nothing() -> None:
    head = node(0)
    assert step(head, Proposed("b", BEGAN + 1)) == (head, ())


def test_a_tail_that_the_head_does_not_have_is_cut() -> None:
    head = winner((A,))
    head, _ = receive(head, 2, ack(head, 2, head.won_at, 2), head.won_at)
    head, _ = step(head, Proposed("c", head.won_at))
    message = beat(head, 2)._replace(length=1, digest=head.digests[1], entries=(C,))
    follower, actions = receive(node(2, (A, B)), 1, message)
    assert follower.log == (A, C)
    assert Write(1, (C,)) in actions


def test_an_old_beat_that_comes_late_cuts_nothing() -> None:
    head = node(0, (A, B))
    old = beat(head, 1)._replace(length=0, digest="", entries=(A,))
    follower, _ = receive(node(1, (A, B)), 0, beat(head, 1))
    follower, _ = receive(follower, 0, old)
    assert follower.log == (A, B)
    assert follower.verified == 2


def test_a_node_that_is_behind_gets_what_it_lacks_at_once() -> None:
    head = node(0, (A, B))
    behind = ack(head, 1, 100.5)._replace(length=1)
    _, actions = receive(head, 1, behind)
    assert [message.entries for message in sent(actions) if isinstance(message, Beat)] == [(B,)]


# --- head_lost: stop


def test_without_elections_the_first_head_needs_nobody() -> None:
    head = node(0, (), voters=5, elects=False)
    assert election.has_authority(head, BEGAN + 1000)
    head, actions = step(head, Proposed("a", BEGAN + 1000))
    assert head.committed == 1
    assert head.permit_until == float("inf")
    assert all(message.remaining <= SHORTER * LEASE for message in sent(actions) if isinstance(message, Beat))


def test_without_elections_nobody_tries_to_lead() -> None:
    follower = node(1, elects=False)
    assert step(follower, Tick(BEGAN + 1000)) == (follower, ())


# --- who votes

VOTERS = '{"event": "Voters", "fields": {"nodes": %s, "at": 1.0}}'


def led(voters: int = 3) -> State:
    """A head whose entry of this epoch is on all nodes."""
    head = node(0, voters=voters)
    head, _ = step(head, Proposed("x", BEGAN))
    return acknowledged(head, range(1, voters))


def acknowledged(head: State, nodes: Iterable[int], at: float = BEGAN + 1) -> State:
    """Nodes have the whole log."""
    for sender in nodes:
        stamp = Stamp(f"boot of {sender}", at)
        head, _ = receive(head, sender, Ack(1, Stamp("boot of 0", at), stamp, head.length), at)
    return head


def test_entries_that_are_proposed_together_travel_in_one_beat() -> None:
    head, actions = step(led(), Proposed("{}", BEGAN + 1, ("{}", "{}")))
    assert [len(beat.entries) for beat in sent(actions) if isinstance(beat, Beat)] == [3, 3]
    assert head.length == led().length + 3


def test_a_node_that_was_added_gets_the_log_before_it_votes() -> None:
    head, actions = step(led(), Admitted(3, BEGAN + 1))
    (first,) = sent(actions)
    assert isinstance(first, Beat) and first.echo is None
    changed, actions = step(head, Proposed(VOTERS % "[0, 1, 2, 3]", BEGAN + 1))
    assert (changed.voters, actions) == (frozenset(range(3)), ())
    head = acknowledged(head, [3])
    changed, actions = step(head, Proposed(VOTERS % "[0, 1, 2, 3]", BEGAN + 1))
    assert (changed.voters, changed.quorum, len(sent(actions))) == (frozenset(range(4)), 3, 3)
    assert acknowledged(changed, [1], BEGAN + 2).committed < changed.length  # two of four
    assert acknowledged(changed, [1, 3], BEGAN + 2).committed == changed.length


def test_a_change_of_voters_waits_for_the_one_before() -> None:
    head = led(5)
    head, _ = step(head, Proposed(VOTERS % "[0, 1, 2, 3]", BEGAN + 1))
    assert head.voters == frozenset(range(4))
    refused, actions = step(head, Proposed(VOTERS % "[0, 1, 2]", BEGAN + 1))
    assert (refused, actions) == (head, ())
    head = acknowledged(head, [1, 2], BEGAN + 2)
    assert step(head, Proposed(VOTERS % "[0, 1, 2]", BEGAN + 2))[0].voters == frozenset(range(3))


@pytest.mark.parametrize("nodes", ["[1, 2]", "[0]", "[0, 1, 2, 3, 4]"])
def test_voters_change_one_at_a_time_and_never_without_the_head(nodes: str) -> None:
    head = led()
    assert step(head, Proposed(VOTERS % nodes, BEGAN + 1)) == (head, ())


def test_a_node_that_does_not_vote_any_more_never_tries_to_lead_and_is_not_asked() -> None:
    log = (A, Entry(1, VOTERS % "[0, 1]"))
    gone, left = node(2, log), node(1, log)
    assert step(gone, Tick(LATER + 10)) == (gone, ())
    asked, actions = step(left, Tick(LATER + 10))
    assert asked.role is Role.TRIAL and [action.node for action in actions if isinstance(action, Send)] == [0]
    asked, _ = receive(asked, 2, Answer(1, True, asked.round, True), LATER + 10)
    assert asked.role is Role.TRIAL  # one that does not vote does not count


def test_the_last_voter_keeps_its_authority_and_its_permit() -> None:
    only = Entry(1, '{"event": "Voters", "fields": {"nodes": [0]}}')
    head = node(0, (A, only))
    for at in (BEGAN + 10, BEGAN + 100):  # a recorder that is started again too
        head, actions = step(head, Tick(at))
        assert Permit(at + SHORTER * LEASE, 1) in actions and election.has_authority(head, at)


def test_a_change_of_voters_that_is_cut_from_the_log_is_undone() -> None:
    follower = node(1, (A, Entry(1, VOTERS % "[0, 1, 2, 3]")))
    assert follower.voters == frozenset(range(4))
    head = node(2, (A, C))._replace(ballot=Ballot(2, 2, leads=True))
    newer = Beat(2, Stamp("boot of 2", BEGAN), None, 1.0, 1, head.digests[1], (C,), 0)
    follower, _ = receive(follower, 2, newer)
    assert (follower.log, follower.voters) == ((A, C), frozenset(range(3)))
