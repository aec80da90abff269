"""HTTP responses out of bytes that are cut anywhere."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployer.bench.load.transport import ResponseReader

pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
cuts = st.lists(st.integers(1, 12), max_size=60)


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    found = []
    for length in lengths:
        found.append(data[:length])
        data = data[length:]
    return [piece for piece in [*found, data] if piece]


def chunked(parts: list[bytes], *, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    whole = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + whole + b"0\r\n" + trailer + b"\r\n"


def read(data: list[bytes]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    return reader, b"".join([reader.feed(piece) for piece in data])


@given(pieces, cuts, st.sampled_from([b"", b";x=1", b" ; y"]), st.sampled_from([b"", b"a: b\r\n"]))
def test_a_chunked_body_however_it_is_cut(
    parts: list[bytes], lengths: list[int], extension: bytes, trailer: bytes
) -> None:
    reader, body = read(cut(chunked(parts, extension=extension, trailer=trailer), lengths))
    assert (reader.status, reader.done, body) == (200, True, b"".join(parts))
    assert reader.headers == [(b"Transfer-Encoding", b"chunked")]
    reader.end()


@given(pieces)
def test_chunks_that_come_whole_are_handed_on_at_once(parts: list[bytes]) -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for part in parts:
        assert reader.feed(b"%X\r\n%s\r\n" % (len(part), part)) == part
    assert not reader.done
    with pytest.raises(ValueError, match="whole body"):
        reader.end()
    reader.feed(b"0\r\n\r\n")
    assert reader.done


@given(st.binary(max_size=80), cuts, st.sampled_from([b"\r\n", b"\n"]))
def test_a_counted_body_and_one_until_the_end(text: bytes, lengths: list[int], end: bytes) -> None:
    early = end.join([b"HTTP/1.1 103 Early Hints", b"Link: </a>", b"", b""])
    head = end.join([b"HTTP/1.1 404 Not Found", b"Content-Length: %d" % len(text), b"", b""])
    reader, body = read(cut(early + head + text, lengths))
    assert (reader.status, body) == (404, text)
    assert reader.done
    until = ResponseReader()
    assert b"".join(map(until.feed, cut(b"HTTP/1.0 200 OK\r\n\r\n" + text, lengths))) == text
    assert not until.done
    until.end()
    assert until.done


@pytest.mark.parametrize(
    "data",
    [
        b"what?\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 " + b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read([data])


@given(st.binary(max_size=200), cuts)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n", [])
def test_anything_is_read_or_refused(data: bytes, lengths: list[int]) -> None:
    for head in (b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        reader = ResponseReader()
        with contextlib.suppress(ValueError):
            body = b"".join(map(reader.feed, cut(head + data, lengths)))
            assert len(body) <= len(data)
            if re.match(rb"[+_-]", data) and head:
                assert body == b""
            reader.end()
            assert reader.done
