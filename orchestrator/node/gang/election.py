"""Who is the head, and until when ranks may run, as decisions: step(state, event) -> (state, actions). Pure.

Raft's rules for epochs, votes and the log (a trial before each vote), and leases that need no common clock:

    head                          node                           why two gangs never run at once
     |-- beat(sent by my clock) -->|  heard_at = now             it gives no vote for a lease after this
     |<-- ack(sent, its stamp) ----|                             so no other head before sent + lease
    authority = the majority's sent + SHORTER * lease            by whatever clock
     |-- beat(stamp, remaining) -->|  permit = stamp + remaining a delayed beat brings an old stamp, and permits nothing
    authority or permit lapses: the ranks are stopped            a new head waits for the stop window

    FOLLOWER --a lease of silence, in turn--> TRIAL --a majority would--> CANDIDATE --a majority does--> HEAD
       ^----------- a beat, or a later epoch, or the round is over ----------|-----------------------------'

With `head_lost: stop` the quorum is 1: the first head is its own majority, and nobody else tries.
"""

from typing import List, Optional, Sequence, Tuple

from .election_log import accept, commit, copy_for, is_current, may_change_voters
from .election_state import (
    ENTRIES_A_BEAT,
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
    Event,
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
    write,
)

Step = Tuple[State, Tuple[Action, ...]]


def begin(config: Config, ballot: Ballot, log: Sequence[Entry], boot: str, at: float) -> State:
    """`ballot` and `log` as they are on disk. It may have heard a head a moment ago, before it was restarted.

    It tries to lead a lease later than others: those that were up all the time know why there is no head, and who was
    silent. They can win as soon as this node votes.
    """
    campaign_at = config.first_turn(at + config.lease)
    state = State(config, boot, ballot, (), ("",), (config.first_voters,), at, campaign_at, begun_at=at)
    state = write(state, 0, tuple(log))
    return _lead(state, at) if ballot.leads else state


def step(state: State, event: Event) -> Step:
    if isinstance(event, Tick):
        return _on_tick(state, event.at)
    if isinstance(event, Proposed):
        return _on_proposed(state, event)
    if isinstance(event, Admitted):
        return _on_admitted(state, event)
    if isinstance(event, Resigned):
        return _resign(state._replace(retired=True), event.at) if state.role is Role.HEAD else (state, ())
    return _on_received(state, event)


def _on_received(state: State, event: Received) -> Step:
    sender, message, at = event
    if isinstance(message, Beat):
        return _on_beat(state, sender, message, at)
    if isinstance(message, Ask):
        return _on_ask(state, sender, message, at)
    if isinstance(message, Copy):
        return _on_copy(state, message)
    if message.epoch > state.ballot.epoch:  # we are behind: somebody has won or voted since
        return _adopt(state, message.epoch, at)
    if isinstance(message, Ack):
        return _on_ack(state, sender, message, at)
    return _on_answer(state, sender, message, at)


# --- what others may ask of the state


def authority_until(state: State, at: float) -> float:
    """Until when the head may decide, by its clock: no voter of a majority has voted for another by then."""
    return _authority_base(state, at) + SHORTER * state.config.lease


def has_authority(state: State, at: float) -> bool:
    return state.role is Role.HEAD and at < authority_until(state, at)


def may_start_attempts(state: State, at: float) -> bool:
    """The ranks of earlier epochs are dead: their permits had lapsed when this head won."""
    return has_authority(state, at) and is_current(state) and at >= stop_window_ends_at(state)


def stop_window_ends_at(state: State) -> float:
    return state.won_at + state.config.stop_window / SHORTER


def beat_for(state: State, node: int, at: float) -> Beat:
    """A beat for a node. One travels with each order to run."""
    known = state.length_of(node)
    length = state.length if known is None else known  # a guess; the answer says how far it is right
    return Beat(
        state.ballot.epoch,
        Stamp(state.boot, at),
        state.stamp_of(node),
        _remaining(state, node, at),
        length,
        state.digests[length],
        state.log[length : length + ENTRIES_A_BEAT],
        state.committed,
    )


def _remaining(state: State, node: int, at: float) -> float:
    """Of the authority, from when the stamp of the node came. A lease at most: a lost node must not get more."""
    if state.stamp_of(node) is None:
        return 0.0
    used = max(0.0, state.stamped_at[node] - _authority_base(state, at))
    return max(0.0, SHORTER * state.config.lease - used)


def order_is_valid(state: State, beat: Beat, at: float) -> bool:
    """Whether a node may obey the order to run that came with this beat: its permit has not lapsed meanwhile."""
    until = permit_until(state, beat, at)
    return beat.epoch >= state.ballot.epoch and until is not None and at < until


# --- the head


def _authority_base(state: State, at: float) -> float:
    """When the newest beat was sent that a majority has acknowledged. The head has always heard itself."""
    if state.quorum == 1:
        return at
    others = [state.acknowledged[node] for node in state.voters if node != state.config.node]
    others.sort(reverse=True)
    return others[state.quorum - 2]


def _lead(state: State, at: float) -> State:
    count = max(state.voters) + 1
    after = state._replace(
        role=Role.HEAD,
        head=state.config.node,
        won_at=at,
        beat_at=at,
        grants=frozenset(),
        verified=state.length,
        learners=frozenset(),
        acknowledged=(float("-inf"),) * count,
        lengths=(None,) * count,
        stamps=(None,) * count,
        stamped_at=(at,) * count,
    )
    if not state.config.elects:  # nobody's acknowledgement is needed, so no lapse of it stops ranks here
        after = after._replace(permit_until=float("inf"))
    return commit(after)


def _other_voters(state: State) -> List[int]:
    return sorted(state.voters - {state.config.node})


def _others(state: State) -> List[int]:
    return sorted((state.voters | state.learners) - {state.config.node})


def _on_admitted(state: State, event: Admitted) -> Step:
    if state.role is not Role.HEAD:
        return state, ()
    more = max(0, event.node + 1 - len(state.lengths))
    after = state._replace(
        learners=state.learners | {event.node},
        acknowledged=(*state.acknowledged, *((float("-inf"),) * more)),
        lengths=(*state.lengths, *((None,) * more)),
        stamps=(*state.stamps, *((None,) * more)),
        stamped_at=(*state.stamped_at, *((event.at,) * more)),
    )
    return after, (_send_beat(after, event.node, event.at),)


def _send_beat(state: State, node: int, at: float) -> Send:
    return Send(node, beat_for(state, node, at))


def _hears_no_majority(state: State, at: float) -> bool:
    """For two leases. Others may still hear this node, and try nothing as long as they do."""
    since = max(state.won_at, _authority_base(state, at))
    return bool(state.log) and at - since > 2 * state.config.lease


def _resign(state: State, at: float) -> Step:
    after, _ = _adopt(state, state.ballot.epoch, at)
    ballot = state.ballot._replace(leads=False)
    return after._replace(ballot=ballot, campaign_at=state.config.first_turn(at)), (Save(ballot),)


def _on_proposed(state: State, event: Proposed) -> Step:
    if not has_authority(state, event.at):
        return state, ()
    entries = tuple(Entry(state.ballot.epoch, text) for text in (event.text, *event.more))
    after = write(state, state.length, entries)
    if after.voters != state.voters and not may_change_voters(state, after.voters):
        return state, ()
    after = commit(after._replace(verified=after.length))
    beats = tuple(_send_beat(after, node, event.at) for node in _others(after))
    return after, (Write(state.length, entries), *beats)


def _on_ack(state: State, sender: int, ack: Ack, at: float) -> Step:
    if state.role is not Role.HEAD or ack.epoch < state.ballot.epoch or sender >= len(state.lengths):
        return state, ()
    sent = ack.beat.at if ack.beat.boot == state.boot else float("-inf")
    known, stamp = state.lengths[sender], state.stamps[sender]
    was_silent = at - state.stamped_at[sender] > 2 * state.config.beat  # its permit may be about to lapse
    after = state._replace(acknowledged=_put(state.acknowledged, sender, max(state.acknowledged[sender], sent)))
    if stamp is None or stamp.boot != ack.stamp.boot or stamp.at < ack.stamp.at:  # else it came late
        after = after._replace(
            lengths=_put(state.lengths, sender, min(ack.length, state.length)),
            stamps=_put(state.stamps, sender, ack.stamp),
            stamped_at=_put(state.stamped_at, sender, at),
        )
    actions: List[Action] = []
    length = after.lengths[sender]
    if was_silent or (length is not None and length < after.length and length != known):
        actions.append(_send_beat(after, sender, at))
    after, permits = _permit_own(commit(after), at)
    return after, (*actions, *permits)


def _permit_own(state: State, at: float) -> Step:
    """The head's own ranks may run as long as it has authority."""
    until = authority_until(state, at)
    if until <= state.permit_until:
        return state, ()
    return state._replace(permit_until=until), (Permit(until, state.ballot.epoch),)


# --- a follower


def _adopt(state: State, epoch: int, at: float, head: Optional[int] = None) -> Step:
    """Follow a later epoch, or the head of this one. A head that steps down keeps the lease that it was given."""
    ballot = state.ballot
    if epoch > ballot.epoch:
        ballot = Ballot(epoch, None, leads=False)
    after = state._replace(
        ballot=ballot,
        role=Role.FOLLOWER,
        head=head,
        heard_at=_heard_at(state, at),
        campaign_at=state.config.next_turn(at),
        grants=frozenset(),
        verified=state.committed,
    )
    return after, (Save(ballot),) if ballot != state.ballot else ()


def _on_beat(state: State, sender: int, beat: Beat, at: float) -> Step:
    stamp = Stamp(state.boot, at)
    if beat.epoch < state.ballot.epoch:
        return state, (Send(sender, Ack(state.ballot.epoch, beat.sent, stamp, 0)),)
    actions: Tuple[Action, ...] = ()
    if beat.epoch > state.ballot.epoch or state.head != sender:
        state, actions = _adopt(state, beat.epoch, at, sender)
    state = state._replace(heard_at=at, campaign_at=_first_turn(state, beat, at))
    state, written = accept(state, beat.length, beat.digest, beat.entries)
    state = state._replace(committed=max(state.committed, min(beat.committed, state.verified)))
    permits: Tuple[Action, ...] = ()
    until = permit_until(state, beat, at)
    if until is not None and until > state.permit_until:
        state = state._replace(permit_until=until)
        permits = (Permit(until, beat.epoch),)
    ack = Ack(beat.epoch, beat.sent, stamp, state.verified)
    return state, (*actions, *written, *permits, Send(sender, ack))


def _first_turn(state: State, beat: Beat, at: float) -> float:
    """A beat that echoes nothing from here may have waited while this node was down: others still try first."""
    echo, config = beat.echo, state.config
    hears_us = echo is not None and echo.boot == state.boot and echo.at >= state.begun_at
    return config.first_turn(at if hears_us else at + config.lease)


def permit_until(state: State, beat: Beat, at: float) -> Optional[float]:
    """The head had `remaining` seconds left when it got the stamp, and that was after we sent it."""
    if beat.echo is None or beat.echo.boot != state.boot:
        return None
    return beat.echo.at + beat.remaining


# --- votes


def _heard_at(state: State, at: float) -> float:
    """A head has given its own lease too: to itself, with each beat that a majority acknowledged."""
    if state.role is Role.HEAD:
        return max(state.heard_at, _authority_base(state, at))
    return state.heard_at


def _lease_is_over(state: State, at: float) -> bool:
    return at - _heard_at(state, at) >= state.config.lease


def _is_as_new(state: State, ask: Ask) -> bool:
    """The candidate's log has all that is committed, if a majority finds it as new as its own."""
    return (ask.last_epoch, ask.length) >= (state.last_epoch, state.length)


def _knows_the_run(ask: Ask) -> bool:
    """With an empty log, the run has not begun, or the candidate does not know of it yet and gets a copy."""
    return ask.length > 0


def _on_tick(state: State, at: float) -> Step:
    if state.role is Role.HEAD:
        if _hears_no_majority(state, at):
            return _resign(state, at)
        if at < state.beat_at:
            return state, ()
        after = state._replace(beat_at=at + state.config.beat)
        after, permits = _permit_own(after, at)  # the last voter gets no acknowledgements
        return after, (*permits, *(_send_beat(after, node, at) for node in _others(after)))
    if state.role is not Role.FOLLOWER and at >= state.round_ends_at:
        return state._replace(role=Role.FOLLOWER, campaign_at=state.config.next_turn(at)), ()
    is_due = at >= state.campaign_at and state.may_lead
    if state.role is Role.FOLLOWER and is_due and _lease_is_over(state, at):
        return _ask_all(state._replace(role=Role.TRIAL, head=None), at)
    return state, ()


def _ask_all(state: State, at: float) -> Step:
    trial = state.role is Role.TRIAL
    after = state._replace(
        round=state.round + 1,
        round_ends_at=at + state.config.round_length,
        grants=frozenset({state.config.node}),
    )
    ask = Ask(
        state.ballot.epoch + trial,
        trial,
        after.round,
        state.last_epoch,
        state.length,
        state.digests[-1],
        state.committed,
    )
    return after, tuple(Send(node, ask) for node in _other_voters(after))


def _on_ask(state: State, sender: int, ask: Ask, at: float) -> Step:
    ballot = state.ballot
    is_free = ask.epoch > ballot.epoch or (not ask.trial and ask.epoch == ballot.epoch and ballot.vote == sender)
    granted = is_free and _lease_is_over(state, at) and _is_as_new(state, ask) and _knows_the_run(ask)
    after, actions = state, ()  # type: Tuple[State, Tuple[Action, ...]]
    if granted and not ask.trial and ask.epoch > ballot.epoch:
        after, _ = _adopt(state, ask.epoch, at)
        after = after._replace(ballot=Ballot(ask.epoch, sender, leads=False))
        actions = (Save(after.ballot),)
    answer = Answer(after.ballot.epoch, ask.trial, ask.round, granted)
    copies = () if _is_as_new(state, ask) else (Send(sender, copy_for(state, ask)),)
    return after, (*actions, Send(sender, answer), *copies)


def _on_copy(state: State, copy: Copy) -> Step:
    """A newer log has all that is committed of this one. With a head, only what the head sends counts."""
    is_newer = (copy.last_epoch, copy.total) > (state.last_epoch, state.length)
    if not is_newer or copy.epoch > state.ballot.epoch or state.role not in (Role.TRIAL, Role.CANDIDATE):
        return state, ()
    after, written = accept(state, copy.length, copy.digest, copy.entries)
    return after._replace(verified=after.committed), written


def _on_answer(state: State, sender: int, answer: Answer, at: float) -> Step:
    role = Role.TRIAL if answer.trial else Role.CANDIDATE
    if state.role is not role or answer.round != state.round or not answer.granted or at >= state.round_ends_at:
        return state, ()
    if not answer.trial and answer.epoch != state.ballot.epoch:  # from before this node was restarted
        return state, ()
    after = state._replace(grants=state.grants | {sender})
    if len(after.grants & after.voters) < after.quorum:
        return after, ()
    ballot = Ballot(after.ballot.epoch + answer.trial, after.config.node, leads=not answer.trial)
    after = after._replace(ballot=ballot)
    if answer.trial:
        after, asks = _ask_all(after._replace(role=Role.CANDIDATE), at)
        return after, (Save(ballot), *asks)
    after = _lead(after, at)
    return after, (Save(ballot), *(_send_beat(after, node, at) for node in _others(after)))


def _put(values: Tuple, position: int, value: object) -> Tuple:  # type: ignore[type-arg]
    return values[:position] + (value,) + values[position + 1 :]
