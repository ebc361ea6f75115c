"""Frames survive every cut of the stream, and a stream that is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.protocol.frames import LIMIT, Unpacker, pack_data, pack_json

messages = st.lists(
    st.one_of(
        st.dictionaries(st.text(), st.one_of(st.integers(), st.text()), max_size=3),
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2**40), st.binary(max_size=100)),
    ),
    max_size=8,
)


@given(messages, st.integers(1, 50))
def test_frames_come_out_as_they_went_in(frames: list[object], size: int) -> None:
    stream = b"".join(pack_data(*frame) if isinstance(frame, tuple) else pack_json(frame) for frame in frames)
    unpacker = Unpacker()
    out = [frame for i in range(0, len(stream), size) for frame in unpacker.feed(stream[i : i + size])]
    assert out == frames


@pytest.mark.parametrize(
    "stream",
    [b"Warning: something was printed", b"J" + (LIMIT + 1).to_bytes(4, "big"), b"D\0\0\0\x01x", b"J\0\0\0\x02[]"],
)
def test_what_is_no_frame_is_refused_wherever_it_is_cut(stream: bytes) -> None:
    for cut in range(len(stream)):
        unpacker = Unpacker()
        with pytest.raises(ValueError, match=r"\S"):
            list(unpacker.feed(stream[:cut])) + list(unpacker.feed(stream[cut:]))


@pytest.mark.parametrize("size", [4096, 100_000, 1 << 20])
def test_pieces_that_are_kept_stay_what_they_were(size: int) -> None:
    pieces = [bytes([at]) * (64 * 1024) for at in range(40)]
    stream = b"".join(pack_data(0, 0, at, piece) for at, piece in enumerate(pieces))
    unpacker = Unpacker()
    kept = [frame for at in range(0, len(stream), size) for frame in unpacker.feed(stream[at : at + size])]
    assert [bytes(frame[3]) for frame in kept if isinstance(frame, tuple)] == pieces


def test_nesting_without_end_is_refused() -> None:
    payload = b'{"a":' * 100_000
    with pytest.raises(ValueError, match="nested"):
        list(Unpacker().feed(b"J" + len(payload).to_bytes(4, "big") + payload))


@given(st.binary(max_size=200))
def test_random_bytes_never_do_worse_than_valueerror(stream: bytes) -> None:
    try:
        list(Unpacker().feed(stream))
    except ValueError:
        pass
