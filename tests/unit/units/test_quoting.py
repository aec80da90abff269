from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import ConfigError
from deployer.units import quoting
from deployer.units.text import section
from tests.unit.units import systemd
from tests.unit.units.cases import NASTY

#: Any text but what systemd cannot hold: surrogates, and what Unicode calls noncharacters.
writable = st.text(
    st.characters(codec="utf-8", exclude_characters="\0").filter(
        lambda char: not (0xFDD0 <= ord(char) <= 0xFDEF or ord(char) & 0xFFFE == 0xFFFE)
    )
)
variable = writable.filter(lambda text: not any((ord(c) < 32 and c not in "\t\n") or ord(c) == 127 for c in text))
PROGRAM = "/opt/sglang/bin/python"


def as_systemd_reads(line: str) -> list[str]:
    (entry,) = systemd.assignments(f"[Service]\nExecStart={line}\n")
    return systemd.command(entry[2])


@pytest.mark.parametrize("word", NASTY)
def test_nasty_words(word: str) -> None:
    argv = [PROGRAM, word, "--next", word, word]
    assert as_systemd_reads(quoting.command_line(argv)) == argv


@given(st.lists(writable | st.sampled_from(NASTY), max_size=6))
def test_any_command_line(words: list[str]) -> None:
    argv = [PROGRAM, *words]
    line = quoting.command_line(argv)
    assert as_systemd_reads(line) == argv
    # Our own reader, which finds what needs a restart, sees one assignment too.
    assert list(section(f"[Service]\nExecStart={line}\nRestart=no\n", "Service")) == ["ExecStart", "Restart"]


@given(writable)
def test_one_line_for_every_reader(word: str) -> None:
    """Python splits lines at more characters than systemd does; neither may see a line end in a word."""
    assert len(quoting.word(word).splitlines()) <= 1


@pytest.mark.parametrize("path", ["/opt/a b/python", "/opt/100%/python", "/opt/$x/p;y", "/ä/py", "/@a", "/a\u00a0b"])
def test_programs(path: str) -> None:
    assert as_systemd_reads(quoting.command_line([path, "-m"])) == [path, "-m"]


@pytest.mark.parametrize(
    "path",
    ["", "python", "./python", "@/bin/x", "/a/", "/a//b", "/a/../b", '/a"b', "/a'b", "/a\\b", "/a\nb"],
)
def test_programs_that_systemd_would_change(path: str) -> None:
    with pytest.raises(ConfigError):
        quoting.command_line([path])


@given(variable | st.sampled_from([word for word in NASTY if not any(c in word for c in "\r\x01\x1b\x7f")]))
def test_environment(value: str) -> None:
    line = quoting.assignment("NAME", value)
    (entry,) = systemd.assignments(f"[Service]\nEnvironment={line}\n")
    assert systemd.environment(entry[2]) == {"NAME": value}


@given(st.lists(variable, max_size=4))
def test_environment_file(values: list[str]) -> None:
    meant = {f"NAME_{number}": value for number, value in enumerate(values)}
    text = "".join(quoting.file_line(name, value) for name, value in meant.items())
    assert systemd.environment_file(text) == meant


@given(st.text())
def test_plain_is_kept_or_refused(value: str) -> None:
    try:
        written = quoting.plain(value)
    except ConfigError:
        return
    (entry,) = systemd.assignments(f"[Unit]\nDescription={written}\n") or [("", "", "")]
    assert systemd.specifiers(entry[2]) == value


@pytest.mark.parametrize("value", ["a\nb", " a", "a ", "a\\", "a\0", "\x01", "\ud800"])
def test_plain_refuses(value: str) -> None:
    with pytest.raises(ConfigError):
        quoting.plain(value)


def test_paths() -> None:
    assert quoting.path("/a b/100%") == "/a b/100%%"
    for wrong in ("a", "", "/a*", "/a[b]", "/a?", "/a\\b", "/a\n", "-/a"):
        with pytest.raises(ConfigError):
            quoting.path(wrong)


@pytest.mark.parametrize("value", ["a\0b", "\0", "\ud800", "a\udfffb", "\ufffe", "\ufdd0", "\U0001ffff"])
def test_what_no_place_can_hold(value: str) -> None:
    for write in (
        quoting.word,
        quoting.plain,
        partial(quoting.assignment, "A"),
        partial(quoting.file_line, "A"),
    ):
        with pytest.raises(ConfigError) as caught:
            write(value)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["\x01", "a\rb", "\x7f", "\x1b[0m"])
def test_control_characters_in_variables(value: str) -> None:
    for write in (quoting.assignment, quoting.file_line):
        with pytest.raises(ConfigError, match="control characters"):
            write("NAME", value)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", "A\n"])
def test_names_of_variables(name: str) -> None:
    for write in (quoting.assignment, quoting.file_line):
        with pytest.raises(ConfigError):
            write(name, "x")


def test_a_secret_is_not_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        quoting.file_line("HF_TOKEN", "hunter2\0")
    assert "hunter2" not in f"{caught.value.as_dict()}"


def test_limits() -> None:
    most = "x" * (quoting.ARGUMENT_LIMIT - 1)
    assert as_systemd_reads(quoting.command_line([PROGRAM, most])) == [PROGRAM, most]
    for wrong in (most + "x", "ä" * (quoting.ARGUMENT_LIMIT // 2)):
        with pytest.raises(ConfigError, match="bytes long"):
            quoting.command_line([PROGRAM, wrong])
    assert quoting.command_line([PROGRAM, *[most] * 7])
    with pytest.raises(ConfigError, match="longer than"):
        quoting.command_line([PROGRAM, *[most] * 8])
    with pytest.raises(ConfigError, match="bytes long"):
        quoting.assignment("NAME", "x" * (quoting.ARGUMENT_LIMIT - 5))
    with pytest.raises(ConfigError):
        quoting.command_line([])
