"""The event splitter under any cut, and what one request's record makes of events."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load import stream
from deployer.bench.load.stats import Request
from deployer.bench.load.stream import EventSplitter

payload = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=30)
newline = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream of events with all that the format allows in it, and the data it carries."""
    end = draw(newline)
    text, expected = "", []
    for _ in range(draw(st.integers(0, 6))):
        lines = draw(st.lists(payload, min_size=1, max_size=3))
        text += draw(st.sampled_from(["", f": a comment{end}", f"event: x{end}id: 3{end}", f"nothing{end}", end]))
        text += "".join(f"data: {line}{end}" for line in lines) + end
        expected.append("\n".join(lines).encode())
    return (text + draw(st.sampled_from(["", "data: unfinished", f"data: x{end}"]))).encode(), expected


@given(streams(), st.data())
def test_any_cut_gives_the_same_events(case: tuple[bytes, list[bytes]], data: st.DataObject) -> None:
    raw, expected = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    splitter = EventSplitter()
    found = [e for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) for e in splitter.feed(raw[a:b])]
    assert found == expected


@given(streams())
def test_byte_by_byte_and_at_once_are_the_same(case: tuple[bytes, list[bytes]]) -> None:
    raw, expected = case
    single, whole = EventSplitter(), EventSplitter()
    assert [e for i in range(len(raw)) for e in single.feed(raw[i : i + 1])] == expected
    assert whole.feed(raw) == expected


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_garbage_never_raises(pieces: list[bytes]) -> None:
    splitter = EventSplitter()
    for piece in pieces:
        splitter.feed(piece)


def test_an_event_is_given_out_with_the_piece_that_completes_it() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"da") == []
    assert splitter.feed(b'ta: {"text": "\xc3') == []
    assert splitter.feed(b'\xa9"}\n') == []
    assert splitter.feed(b"\ndata: [DONE]\n\n") == ['{"text": "é"}'.encode(), b"[DONE]"]


def test_a_space_after_the_colon_and_a_byte_order_mark_do_not_count() -> None:
    assert EventSplitter().feed(b"\xef\xbb\xbfdata:x\n\ndata:  y\n\n") == [b"x", b" y"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_endless_event_is_refused(end: bytes) -> None:
    splitter = EventSplitter()

    def feed_ten_megabytes() -> None:
        for _ in range(100):
            splitter.feed(b"data: " + b"x" * 100_000 + end)

    with pytest.raises(ValueError, match="more than"):
        feed_ten_megabytes()


def record(*events: object, asked: int = 2) -> Request:
    request = Request(0, asked, intent=0.0)
    for moment, event in enumerate(events):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        stream.absorb(request, data, float(moment))
    stream.conclude(request)
    return request


def token(text: str) -> object:
    return {"choices": [{"text": text}], "usage": None}


def usage(n: int) -> object:
    return {"choices": [], "usage": {"completion_tokens": n, "prompt_tokens": 5}}


def test_a_complete_answer() -> None:
    r = record(token("a"), token(""), token("b"), usage(2), b"[DONE]")
    assert r.completed
    assert (r.tokens, r.prompt_tokens, r.text) == (2, 5, "ab")
    assert r.stamps == [0.0, 2.0]  # the chunk without text is no token's arrival
    assert r.end == 4.0


def test_tokens_come_from_usage_and_not_from_chunks() -> None:
    r = record(token("several words at once"), usage(9), b"[DONE]", asked=9)
    assert r.completed
    assert r.tokens == 9
    assert r.tokens_per_chunk == 9


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([token("a"), token("b"), b"[DONE]"], "no-usage"),
        ([usage(2), b"[DONE]"], "empty"),
        ([token(""), usage(2)], "empty"),
        ([token("a"), usage(1), b"[DONE]"], "short"),
        ([token("a"), {"error": {"message": "out of memory"}}, usage(2)], "error"),
        ([], "protocol"),
    ],
)
def test_incomplete_answers_have_a_name(events: list[object], kind: str) -> None:
    r = record(*events)
    assert r.kind == kind
    assert not r.completed
    assert r.detail


@pytest.mark.parametrize(
    "data",
    [
        b"{nonsense",
        b"[1]",
        b"3",
        *(
            b'{"choices": [], "usage": {"completion_tokens": %s}}' % value
            for value in (b"1e999", b"NaN", b"-1", b"1" * 400, b'"8"', b"true", b"[]")
        ),
    ],
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's own messages)
        stream.absorb(Request(0, 1), data, 0.0)
