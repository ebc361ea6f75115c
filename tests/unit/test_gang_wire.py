"""Frames of the gang: what is not exactly what the peer wrote, in its order and session, is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.node.gang.link import FIRST_LIMIT, LIMIT, BrokenWireError, WireSession

KEY = b"k" * 32
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def pair(key: bytes = KEY) -> tuple[WireSession, WireSession]:
    leader, follower = WireSession(KEY, leads=True), WireSession(key, leads=False)
    assert leader.feed(follower.greeting()) == []
    assert follower.feed(leader.greeting()) == []
    return leader, follower


@given(st.lists(st.dictionaries(st.text(), json_values), max_size=4), st.integers(1, 50))
def test_messages_arrive_as_they_were(messages: list[dict[str, Any]], size: int) -> None:
    leader, follower = pair()
    wire = b"".join(follower.pack(message) for message in [{"k": "first"}, *messages])
    got = []
    for at in range(0, len(wire), size):
        got += leader.feed(wire[at : at + size])
    assert got == [{"k": "first"}, *messages]


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
    for session in (WireSession(KEY, leads=True), pair()[0]):
        try:
            assert session.feed(junk) == []
        except BrokenWireError:
            pass


def test_replayed_reflected_or_reordered_messages_are_refused() -> None:
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


def test_a_stranger_s_frame_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(payload: bytes) -> None:
        raise AssertionError("parsed without a proof")

    leader, follower = pair()
    frame = follower.pack({"k": "a"})
    monkeypatch.setattr("disttui.runner.node.gang.link.json.loads", parse)
    for junk in (b"[" * 900, b'{"k":"\\ud800"}', b"{}", b"\xff" * 900, b"9" * 900):
        stranger = struct.pack(">I", 32 + len(junk)) + bytes(32) + junk
        session = WireSession(KEY, leads=True)
        session.feed(b"0" * 32)
        with pytest.raises(BrokenWireError, match="wrong HMAC"):
            session.feed(stranger)
    with pytest.raises(AssertionError, match="without a proof"):
        leader.feed(frame)


@pytest.mark.parametrize("nonce", ["A" * 32, "g" * 32, "0" * 31 + "\n", '{"nonce":"' + "0" * 32, "\ud800" * 16])
def test_a_greeting_is_32_lowercase_hexadecimal_digits(nonce: str) -> None:
    for session in (WireSession(KEY, leads=True), WireSession(KEY, leads=False)):
        with pytest.raises(BrokenWireError, match="no greeting"):
            session.feed(nonce.encode("utf-8", "surrogatepass"))


def test_depth_and_length_are_bounded() -> None:
    for length in (FIRST_LIMIT + 1, LIMIT, 2**32 - 1, 31, 0):
        with pytest.raises(BrokenWireError):
            WireSession(KEY, leads=True).feed(b"0" * 32 + struct.pack(">I", length))
    leader, follower = pair()
    leader.feed(follower.pack({"k": "a"}))
    with pytest.raises(BrokenWireError):
        follower.pack({"k": "x" * LIMIT})
    with pytest.raises(BrokenWireError):
        pair()[0].pack({"k": "x" * FIRST_LIMIT})
    leader.feed(follower.pack({"k": "x" * FIRST_LIMIT}))
    with pytest.raises(BrokenWireError):
        leader.feed(struct.pack(">I", LIMIT + 1))


@pytest.mark.parametrize("payload", [b"[" * 60_000, b'{"a":' * 9000, b"9" * 60_000, b"\xff", b"[]", b"null", b""])
def test_what_a_host_with_the_key_sends_instead_of_json(payload: bytes) -> None:
    leader, follower = pair()
    leader.feed(follower.pack({"k": "a"}))
    proof = follower._proof(False, 1, payload)
    with pytest.raises(BrokenWireError):
        leader.feed(struct.pack(">I", 32 + len(payload)) + proof + payload)
