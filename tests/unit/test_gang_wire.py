"""Frames of the gang: what is not exactly what the peer wrote, in its order and session, is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.node.gang.wirehmac import LIMIT, BrokenWireError, Session

KEY = b"k" * 32
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def pair(key: bytes = KEY) -> tuple[Session, Session]:
    leader, follower = Session(KEY, leads=True), Session(key, leads=False)
    assert leader.feed(follower.greeting()) == []
    assert follower.feed(leader.greeting()) == []
    return leader, follower


@given(st.lists(st.dictionaries(st.text(), json_values), max_size=4), st.integers(1, 50))
def test_messages_arrive_as_they_were(messages: list[dict[str, object]], size: int) -> None:
    leader, follower = pair()
    wire = b"".join(follower.pack(message) for message in messages)
    got = []
    for at in range(0, len(wire), size):
        got += leader.feed(wire[at : at + size])
    assert got == messages


@given(st.data())
def test_a_changed_byte_is_never_taken_for_a_message(data: st.DataObject) -> None:
    leader, follower = pair()
    frame = bytearray(follower.pack({"k": "stop", "reason": "user", "now": False}))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        assert leader.feed(bytes(frame)) == []
    except BrokenWireError:
        pass


@given(st.binary(max_size=300))
def test_garbage_ends_in_one_way(junk: bytes) -> None:
    for session in (Session(KEY, leads=True), pair()[0]):
        try:
            assert session.feed(junk) == []
        except BrokenWireError:
            pass


def test_replay_reflection_reorder_and_other_sessions_are_refused() -> None:
    leader, follower = pair()
    first, second = follower.pack({"k": "a"}), follower.pack({"k": "b"})
    with pytest.raises(BrokenWireError):
        leader.feed(second)
    leader, follower = pair()
    with pytest.raises(BrokenWireError):
        leader.feed(first)
    own = follower.pack({"k": "a"})
    assert leader.feed(own) == [{"k": "a"}]
    with pytest.raises(BrokenWireError):
        leader.feed(own)
    leader, follower = pair()
    with pytest.raises(BrokenWireError):
        leader.feed(leader.pack({"k": "a"}))
    leader, stranger = pair(b"x" * 32)
    with pytest.raises(BrokenWireError):
        leader.feed(stranger.pack({"k": "a"}))


def test_depth_and_length_are_bounded() -> None:
    for junk in (b"[" * LIMIT, b'{"a":' * (LIMIT // 5)):
        with pytest.raises(BrokenWireError):
            Session(KEY, leads=True).feed(struct.pack(">I", len(junk)) + junk)
    with pytest.raises(BrokenWireError):
        Session(KEY, leads=True).feed(struct.pack(">I", LIMIT + 1))
    with pytest.raises(BrokenWireError):
        pair()[0].pack({"k": "x" * LIMIT})
