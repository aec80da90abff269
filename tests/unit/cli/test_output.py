"""Output that cannot end a deployment."""

from __future__ import annotations

import io
import os

import pytest

from deployer.cli.output import Unbreakable


class Broken(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        return os.open(os.devnull, os.O_WRONLY)


def test_a_reader_that_is_gone_makes_it_silent() -> None:
    stream = Unbreakable(Broken())
    assert stream.write("a line\n") == 7
    assert stream.broken
    stream.write("another\n")
    stream.flush()
    assert not stream.isatty()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_cannot_be_shown_are_replaced(encoding: str) -> None:
    raw = io.BytesIO()
    stream = Unbreakable(io.TextIOWrapper(raw, encoding=encoding))
    stream.write("✓ done\n")
    stream.flush()
    assert raw.getvalue() == b"? done\n"


def test_a_closed_stream_is_not_an_error() -> None:
    closed = io.StringIO()
    closed.close()
    stream = Unbreakable(closed)
    stream.write("x")
    stream.flush()
    assert stream.broken
