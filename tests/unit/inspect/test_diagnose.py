"""Diagnosing what is on a host: the last run, a release that was kept."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployer.deploy.session import Session
from deployer.errors import Refused, UsageError
from deployer.inspect import diagnose as diagnose_
from deployer.inspect import log_file
from deployer.inspect.diagnose import of_file, of_release, of_service
from deployer.inspect.log_file import Excerpt, ends_of, fewer_lines
from deployer.report.diagnosis_view import diagnosis_view
from deployer.sglang.log import encoding
from deployer.sglang.log.diagnosis import Diagnosis
from deployer.sglang.log.encoding import text_of
from tests.fakes.host import Engine, FakeWorld
from tests.unit.deploy.test_apply import session
from tests.unit.sglang.log.builders import QUIT, trace, until

OOM = (
    *until("load", "TP0"),
    *trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
    *QUIT,
)


def render(found: Diagnosis) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        console.print(diagnosis_view(found))
    return capture.get()


def opened(made: FakeWorld) -> Session:
    return session(made)


def world(log: tuple[str, ...], **changes: Any) -> FakeWorld:
    made = FakeWorld(engines={"0001-tp8": Engine(log=log, **changes)})
    made.make_live(session(made).service.name, "0001-tp8")
    return made


def test_a_server_that_runs_did_not_fail() -> None:
    made = world(tuple(until("ready", "TP0")))
    with opened(made) as here:
        found = of_service(here)
    assert found.outcome == "no-failure"
    assert found.running is True
    assert found.verdict == "no failure in this log: the server is ready"
    assert found.as_dict()["unit"]["active"] == "active"
    assert "the server is ready" in render(found)


def test_a_run_that_systemd_began_by_itself_names_the_command_for_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = world(tuple(until("load", "TP0")))
    with opened(made) as here:
        state = here.state()
        monkeypatch.setattr(here, "state", lambda: replace(state, unit=replace(state.unit, restarts=2)))
        found = of_service(here)
    assert "started it again (restarts: 2)" in str(found.origin["restarted"])
    assert "deployer diagnose --release 1" in render(found)


def test_a_server_that_died_is_explained_with_line_numbers() -> None:
    made = world(OOM, fails_after=0.0)
    with opened(made) as here:
        found = of_service(here)
    assert found.outcome == "failed"
    assert found.cause is not None
    assert (found.cause.signature, found.cause.phase, found.cause.rank) == (
        "cuda_oom_load",
        "load",
        "TP0",
    )
    shown = render(found)
    assert "failed in phase load on TP0" in shown
    assert "cuda_oom_load" in shown
    assert f"{found.cause.numbers[0]} [2026-01-01" in shown


def test_the_kernels_messages_are_read() -> None:
    made = world((*until("load", "TP0"), *QUIT), fails_after=0.0)
    made.machine.kernel_log = ("Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB",)
    with opened(made) as here:
        found = of_service(here)
    assert found.as_dict()["signature"] == "host_oom"
    assert found.as_dict()["evidence_lines"] == [0]
    asked = [args for name, args in made.calls if name == "journal" and args.get("kernel")]
    assert 0 < asked[0]["since"] <= time.time()
    assert "kernel Out of memory" in " ".join(render(found).split())


def test_of_a_long_journal_both_ends_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that logs for weeks is asked for its first and its newest lines only."""
    monkeypatch.setattr(diagnose_, "FIRST_LINES", 100)
    monkeypatch.setattr(diagnose_, "NEWEST_LINES", 50)
    begin = tuple(until("ready", "TP0"))
    chatter = tuple(f"[2026-01-01 10:00:00 TP0] request {number} was odd" for number in range(400))
    made = world(
        (*begin, *chatter, *trace("RuntimeError: CUDA error: an illegal memory access"), *QUIT),
        fails_after=0.0,
    )
    with opened(made) as here:
        found = of_service(here)
    document = found.as_dict()
    assert document["outcome"] == "failed"
    assert document["reached"] == "ready"
    # One of the newest 50 entries of the journal is an empty line.
    assert "the first 100 lines and the newest 49 were read" in document["left_out"]
    assert "the first 100 lines" in " ".join(render(found).split())
    short = world((*begin, *chatter[:100]))
    with opened(short) as here:
        document = of_service(here).as_dict()
    assert "left_out" not in document


def kept(made: FakeWorld, **changes: Any) -> None:
    files = {"log.txt": "\n".join(OOM)}
    manifest = {"state": "failed", "was_live": False, **changes}
    made.service(session(made).service.name).keep("0002-pp8", manifest, files)


def test_a_release_is_diagnosed_from_what_it_kept() -> None:
    made = world(())
    kept(
        made,
        failure={"signature": "cuda_oom", "phase": "load", "cause": "as it was seen then", "remedy": "x"},
    )
    with opened(made) as here:
        found = of_release(here, 2)
    document = found.as_dict()
    assert (document["signature"], document["release"]) == ("cuda_oom_load", "0002-pp8")
    assert document["recorded"]["signature"] == "cuda_oom"
    assert "as it was seen then" in render(found)


def test_a_release_that_was_never_started_is_called_that() -> None:
    made = world(())
    kept(made, state="abandoned")
    Path(made.service(session(made).service.name).release_dir("0002-pp8"), "log.txt").unlink()
    with opened(made) as here:
        found = of_release(here, 2)
    assert found.verdict == "no failure: this release was never started (it is abandoned)"


def test_a_release_that_is_not_there_is_refused() -> None:
    made = world(())
    with opened(made) as here, pytest.raises(Refused, match="no release 9"):
        of_release(here, 9)


CHATTER = "[2026-01-01 10:00:00 TP0] something that is no failure, number {}\n"


def long_log() -> bytes:
    """The beginning of a good start, chatter, and a failure at the very end."""
    begin = "".join(f"{line}\n" for line in until("load", "TP0"))
    middle = "".join(CHATTER.format(number) for number in range(3000))
    end = "".join(f"{line}\n" for line in (*trace("torch.OutOfMemoryError: CUDA out of memory."), *QUIT))
    return (begin + middle + end).encode()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of 8 KiB and 24 KiB."""
    monkeypatch.setattr(log_file, "HEAD", 8 << 10)
    monkeypatch.setattr(log_file, "TAIL", 24 << 10)
    monkeypatch.setattr(log_file, "_CHUNK", 1 << 10)
    monkeypatch.setattr(encoding, "_PIECE", 1 << 10)
    monkeypatch.setattr(ends_of, "__kwdefaults__", {"head": 8 << 10, "tail": 24 << 10})


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "two archives": lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:]) + bytes(512),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("piped", [False, True])
def test_of_a_long_file_both_ends_are_read(
    packed: str, piped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = long_log()
    path = tmp_path / "server.log"
    path.write_bytes(PACKED[packed](data))
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    found = of_file("-" if piped else str(path))
    assert found.cause is not None
    assert (found.cause.signature, found.cause.phase) == ("cuda_oom_load", "load")
    assert found.state.phase == "load"  # which the beginning tells
    said = str(found.origin["left_out"])
    assert f"of {len(data):,} were left out" in said
    lines = data.decode().split("\n")
    for number, text in zip(found.cause.numbers, found.cause.evidence, strict=True):
        assert text in lines[number - 1]
    assert said in " ".join(render(found).split())


@pytest.mark.usefixtures("small")
def test_a_huge_file_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "COUNTED", 64 << 10)
    path = tmp_path / "server.log"
    path.write_bytes(long_log())
    found = of_file(str(path))
    assert found.cause is not None
    assert found.cause.signature == "cuda_oom_load"
    assert "numbered as if they did not exist" in str(found.origin["left_out"])


@pytest.mark.usefixtures("small")
def test_two_bytes_a_character_are_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(long_log().decode().encode("utf-16"))
    found = of_file(str(path))
    assert found.cause is not None
    assert found.cause.signature == "cuda_oom_load"


@pytest.mark.usefixtures("small")
def test_a_stream_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "ENDLESS", 1 << 20)

    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            buffer[:] = (b"no end\n" * (len(buffer) // 7 + 1))[: len(buffer)]
            return len(buffer)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    found = of_file("-")
    assert "it goes on after" in str(found.origin["unread"])


def test_an_archive_that_ends_too_early_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(long_log())[:-200])
    found = of_file(str(path))
    assert found.origin["unread"] == "the archive ends too early"
    assert "the archive ends too early" in render(found)
    path.write_bytes(b"\x1f\x8b" + bytes(range(32, 127)))
    with pytest.raises(UsageError, match="cannot be unpacked"):
        of_file(str(path))


def test_few_bytes_that_unpack_to_many_are_no_memory() -> None:
    """A megabyte of bzip2 may hold terabytes: no more than a piece of it is in memory at a time."""
    bomb = bz2.compress(bytes(40 << 20))
    assert len(bomb) < 100
    sizes = [len(piece) for piece in encoding.unpacked([bomb])]
    assert sum(sizes) == 40 << 20
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], Excerpt(b"")),
        ([b"a\nb"], Excerpt(b"a\nb")),
        ([b"aa\nbb\n", b"cc\n"], Excerpt(b"aa\nbb\ncc\n")),
        ([b"aa\nbb\n", b"cc\ndd\n"], Excerpt(b"aa\n", b"dd\n", 6, 2)),
        ([b"aa\nb", b"b\ncc\n", b"dd\nee\n", b"ff\ngg\n"], Excerpt(b"aa\n", b"gg\n", 15, 5)),
        ([b"a" * 9, b"b" * 9, b"c" * 9], Excerpt(b"aaaa", b"c" * 9, 14, 0)),
    ],
)
def test_what_is_kept_of_a_stream(chunks: list[bytes], expected: Excerpt) -> None:
    assert ends_of(chunks, head=4, tail=6) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_millions_of_short_lines_are_as_bounded(encoding: str, end: str) -> None:
    data = end.join(str(number) for number in range(1000)).encode(encoding)
    found = fewer_lines(Excerpt(data), head=20, tail=30)
    head = text_of(found.head).split(end)
    tail = text_of(found.tail, data[:2]).split(end)
    assert head == [*map(str, range(20)), ""]
    assert tail == [*map(str, range(969, 1000))]  # the last has no end
    assert len(found.head) + found.left_out + len(found.tail) == len(data)
    assert found.lines == (949 if end == "\n" else 0)
    few = Excerpt(end.join("0123").encode(encoding))
    assert fewer_lines(few, head=2, tail=2) is few

    both = fewer_lines(replace(found, left_out=10, lines=3), head=5, tail=5)
    assert text_of(both.head).split(end) == ["0", "1", "2", "3", "4", ""]
    assert text_of(both.tail, data[:2]).split(end) == ["994", "995", "996", "997", "998", "999"]
    assert fewer_lines(both, head=5, tail=5) is both


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes(range(256)) * 20, False),
        (random.Random(7).randbytes(5000), False),
        (bytes(5000), False),
        (b"\x00\x01[2026-01-01 10:00:00] Load weight begin\n" * 100, True),
        ("é[2026-01-01 10:00:00] Load weight begin\n".encode("cp1252") * 100, True),
        (("ü" * 2047 + "x" * 3).encode()[:4096], True),
        ("已杀死\n".encode("gbk") * 900, True),
        (b"", True),
    ],
)
def test_a_file_that_is_not_text_is_not_a_log(data: bytes, text: bool, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(data)
    if text:
        assert of_file(str(path)).outcome in ("no-failure", "not-sglang")
    else:
        with pytest.raises(UsageError, match="not a text file"):
            of_file(str(path))
