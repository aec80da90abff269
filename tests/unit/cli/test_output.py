"""Output that cannot end a deployment."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from deployer.cli.console import make_console
from deployer.cli.main import run
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


@pytest.mark.parametrize("words", [["profiles"], ["profiles", "--json"], ["--help"], ["nonsense"]])
def test_a_program_started_without_output_still_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert run(words) == (2 if words == ["nonsense"] else 0)


@pytest.mark.parametrize("words", [["profiles"], ["profiles", "--json"], ["--help"], ["--version"], ["apply", "-h"]])
def test_output_that_a_full_disk_does_not_take_is_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unbreakable, "lost", None)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(words) == 2
    assert "the output could not be written: No space left on device" in capsys.readouterr().err


def test_a_reader_that_left_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unbreakable, "lost", None)
    monkeypatch.setattr(sys, "stdout", Broken())
    assert run(["profiles", "--json"]) == 0


@pytest.mark.parametrize("colour", ["never", "always"])
def test_a_text_of_others_cannot_steer_the_terminal(colour: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A log line may hold anything: a title, a clipboard, a cleared screen."""
    console = make_console(stderr=False, colour=colour)
    console.print(Text("a\x1b]0;evil\x1b\\ b\x00c\x9bd\x7f", style="red"))
    table = Table.grid()
    table.add_row(Text("\x1b[2Jé\t✓"))
    console.print(Group(table))
    said = capsys.readouterr().out
    assert "a␛]0;evil␛\\ b␀c�d␡" in said
    assert "␛[2Jé" in said
    assert "\x1b]" not in said
    assert ("\x1b[31m" in said) == (colour == "always")
