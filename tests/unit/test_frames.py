"""Frames come out as they went in, however the stream is cut; what is no frame is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.hostlink import frames

HEADERS = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "size"), st.integers() | st.text(max_size=9))


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=40)), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_any_cut_gives_the_same_frames(sent: list[tuple[dict[str, object], bytes]], cuts: list[int]) -> None:
    stream = b"".join(frames.encode(header, body) for header, body in sent)
    decoder, got, offset, turn = frames.Decoder(), [], 0, 0
    while offset < len(stream):
        size = cuts[turn % len(cuts)]
        got += list(decoder.feed(stream[offset : offset + size]))
        offset, turn = offset + size, turn + 1
    assert [({k: v for k, v in header.items() if k != "size"}, body) for header, body in got] == sent


def test_part_of_a_frame_is_never_given() -> None:
    whole = frames.encode({"file": "a"}, b"12345")
    decoder = frames.Decoder()
    assert list(decoder.feed(whole[:-1])) == []
    assert list(decoder.feed(whole[-1:])) == [({"file": "a", "size": 5}, b"12345")]


@pytest.mark.parametrize(
    "stream", [b"hello\n", b"[1]\n", b'{"size":-1}\n', b'{"size":"9"}\n', b'{"size":99999999999}\n']
)
def test_what_is_no_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(ValueError):
        list(frames.Decoder().feed(stream))


def test_a_header_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="without a header"):
        list(frames.Decoder().feed(b"x" * (frames.LINE + 1)))
