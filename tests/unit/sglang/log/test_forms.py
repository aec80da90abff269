"""Logs in every form, cut anywhere, damaged: nothing raises, nothing takes more than linear time."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import UsageError
from deployer.inspect.diagnose import of_file
from deployer.sglang.log.diagnosis import diagnose
from deployer.sglang.log.encoding import Damaged, compressed, text_of, unpacked
from deployer.sglang.log.failures import find
from deployer.sglang.log.launch import LaunchLog
from deployer.sglang.log.launch_file import read_start
from deployer.sglang.log.signatures import signatures
from deployer.sglang.log.text import plain, read, read_lines, without_routine
from tests.unit.sglang.log.builders import AT, trace, until
from tests.unit.sglang.log.logs import HEALTHY, launch

FAILED = [*until("load", "TP0"), *trace("torch.OutOfMemoryError: CUDA out of memory.")]
TEXT = "\n".join(FAILED)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_packed_files(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT.encode()))  # type: ignore[operator]
    assert of_file(str(path)).as_dict()["signature"] == "cuda_oom_load"


def test_two_archives_in_one_file_and_one_cut_short() -> None:
    whole = gzip.compress(b"a\n") + gzip.compress(b"b\n")
    assert b"".join(unpacked([whole])) == b"a\nb\n"
    pieces = unpacked([gzip.compress(TEXT.encode() * 200)[:-40]])
    assert next(pieces).startswith(TEXT[:40].encode())
    with pytest.raises(Damaged, match="ends too early"):
        list(pieces)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(encoding: str) -> None:
    text = f"café – {TEXT}"
    assert text_of(text.encode(encoding)) == text


def test_one_line_of_another_encoding_spoils_no_other() -> None:
    assert text_of("é\n".encode("cp1252") + "é\n".encode()) == "é\né\n"


def test_logs_in_json() -> None:
    docker = [json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-01T10:00:00.5Z"}) for line in FAILED]
    journal = [json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1764460580123456"}) for line in FAILED]
    numbers = [json.dumps({"MESSAGE": list(line.encode()), "_PID": "7"}) for line in FAILED]
    ours = [json.dumps({"t": 1.5, "text": line, "source": "engine"}) for line in FAILED]
    for lines in (docker, journal, numbers, ours):
        found = find(list(read_lines(lines)))
        assert found is not None
        assert found.signature == "cuda_oom_load"
    assert read(docker[0])[0].stamp == read("2026-01-01T10:00:00.5Z x")[0].stamp
    assert read(journal[0])[0].stamp == pytest.approx(1764460580.123456)


def test_the_kernels_and_systemds_lines_are_told_apart() -> None:
    lines = read("Jan  1 10:00:00 gpu1 kernel: oom-kill: x\nJan  1 10:00:00 gpu1 systemd[1]: Started a.service.\nx")
    assert [line.source for line in lines] == ["kernel", "systemd", "engine"]
    assert [line.number for line in lines] == [1, 2, 3]


def test_pieces_of_a_bar_keep_their_line_number() -> None:
    lines = read("a\r b\rc\nd")
    assert [(line.number, line.text, line.piece) for line in lines] == [
        (1, "a", True),
        (1, " b", True),
        (1, "c", False),
        (2, "d", False),
    ]


def test_indentation_is_kept_behind_a_front() -> None:
    assert plain('Jan  1 10:00:00 gpu1 python[7]:   File "/x.py", line 1, in y') == '  File "/x.py", line 1, in y'


def test_spans_come_from_the_logs_own_time() -> None:
    start = read_start(read("\n".join(until("ready", "TP0"))))
    assert start.timed
    assert [(span.name, span.seconds) for span in start.state.spans] == [
        ("launch", 1.0),
        ("dist-init", 1.0),
        ("load", 1.0),
        ("kv-pool", 1.0),
        ("capture", 1.0),
        ("http-up", 1.0),
        ("warm-up", 1.0),
        ("ready", 0.0),
    ]


def test_spans_come_from_what_stands_in_front_where_most_lines_have_it() -> None:
    lines = [f"2026-03-01T12:00:{10 * number:02}Z {line}" for number, line in enumerate(until("dist-init"))]
    assert read_start(read("\n".join(lines))).state.spans[0].seconds == pytest.approx(10.0)
    year = [
        "Dec 31 23:59:50 h python[1]: a",
        f"Jan  1 00:00:10 h python[1]: [{AT}00] Load weight begin. avail mem=1 GB",
    ]
    assert read_start(read("\n".join(year))).state.spans[0].seconds == pytest.approx(20.0)


def test_a_log_without_times_has_no_times() -> None:
    assert read_start(read("hello\nworld")).timed is False
    assert diagnose(read("hello")).as_dict()["timeline"] is None


@pytest.mark.parametrize("name", HEALTHY)
def test_no_signature_calls_a_good_log_a_failure(name: str) -> None:
    text = "\n".join(text for _, _, text in launch(name))
    assert diagnose(read(text)).outcome != "failed"
    for cut in range(0, len(text), max(1, len(text) // 6)):
        assert diagnose(read(text[:cut])).outcome != "failed"


@pytest.mark.parametrize("name", HEALTHY)
def test_warnings_of_good_launches_are_not_the_cause_of_a_bad_one(name: str) -> None:
    lines = [text for _, _, text in launch(name) if "SIGTERM" not in text]
    found = find(list(read_lines([*lines, *trace("ZeroDivisionError: division by zero", rank="TP9")])))
    assert found is not None
    assert found.signature == "unknown"
    assert found.cause == "ZeroDivisionError: division by zero"


def test_the_middle_of_routine_lines_is_left_out_and_changes_nothing() -> None:
    work = [f"[{AT}{number % 60:02}] Decode batch, #running-req: {number}" for number in range(100)]
    log = [*until("ready"), *work, *trace("RuntimeError: x y z"), *work]
    kept = without_routine(list(read_lines(log)))
    assert len(kept) < len(log) - 150
    assert [line.text for line in kept if line not in kept[-4:]][-4:] == work[:4]
    whole = find(list(read_lines(log)))
    assert whole == find(kept)
    assert whole is not None
    assert log[whole.numbers[-1] - 1] == whole.evidence[-1]


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(bytes(range(32)) * 100)
    for path in (str(tmp_path), str(tmp_path / "none"), str(junk), "\0"):
        with pytest.raises(UsageError):
            of_file(path)


def test_an_empty_log_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    found = of_file(str(path))
    assert found.outcome == "no-failure"
    assert "no output of SGLang" in found.verdict


VLLM = """(EngineCore_DP0 pid=7) INFO 10-27 18:38:44 [default_loader.py:267] Loading weights took 2.49 seconds
(EngineCore_DP0 pid=7) ERROR 10-27 18:38:45 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=7) ERROR 10-27 18:38:45 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 10-27 18:38:45 [core.py:708]   File "/x/vllm/v1/engine/core.py", line 6, in run
(EngineCore_DP0 pid=7) ERROR 10-27 18:38:45 [core.py:708] torch.OutOfMemoryError: CUDA out of memory.
"""
NGINX = """2026/11/30 03:00:00 [error] 12#12: *1 connect() failed (111: Connection refused) while connecting to upstream
10.0.0.1 - - [30/Nov/2026:03:00:00 +0000] "GET / HTTP/1.1" 502 157 "-" "curl/8.1"
"""


@pytest.mark.parametrize(
    ("text", "whose"), [(VLLM, "vLLM"), (NGINX, "nginx"), ("To whom it may concern\n\nhello\n", "")]
)
def test_the_log_of_another_program_is_called_that(text: str, whose: str) -> None:
    found = diagnose(read(text))
    assert (found.outcome, found.cause, found.program) == ("not-sglang", None, whose)
    assert found.verdict.startswith("not an SGLang log: ")
    assert diagnose(read(text + TEXT)).outcome == "failed"


def test_a_service_s_own_journal_is_never_called_that() -> None:
    assert diagnose(read("hello\n"), running=True).outcome == "no-failure"


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        f"[{AT}00] server_args=ServerArgs(api_key='topsecret')\n" + TEXT.replace("memory.", "--api-key topsecret")
    )
    assert "topsecret" not in json.dumps(of_file(str(path)).as_dict())


HOSTILE = [
    "[2026-01-01 00:00:00 TP0] ",
    "Capturing batches (bs=1 ",
    "Loading safetensors checkpoint shards: ",
    "\x1b[",
    "Traceback (most recent call last):",
    ' File "',
    "server_args=",
    "error: argument ",
    "2026-01-01T00:00:00Z ",
    "a" * 7,
    " " * 9,
    "ptxas error ",
    "nvcc ",
    "Capture graph failed: ",
    "assert a % b ",
    "huggingface.co ",
    "[Errno 98] ",
    "0%|",
    "\r",
]


@pytest.mark.parametrize("word", HOSTILE)
def test_a_long_line_is_read_in_linear_time(word: str) -> None:
    """Four times as much takes four times as long, and not sixteen times."""

    def seconds(size: int) -> float:
        line = (word * (size // len(word) + 1))[:size]
        began = time.process_time()
        log = LaunchLog()
        log.feed(line, 0.0)
        head = 'Traceback (most recent call last):\n  File "/x", line 1, in y\n    z\nValueError: '
        diagnose(read(f"{head}{line}\n{line}\n"))
        return time.process_time() - began

    assert seconds(8_000) < 0.1 + 8 * seconds(2_000)


_WORDS = st.sampled_from([*HOSTILE, *FAILED, *until("ready"), "\n", "\r\n", "{", '{"MESSAGE": ', "\ufeff"])


@given(st.lists(st.one_of(_WORDS.map(str.encode), st.binary(max_size=12)), max_size=40).map(b"".join))
def test_any_bytes_are_diagnosed(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        data = b"".join(unpacked([data])) if compressed(data) else data
    found = diagnose(read(text_of(data)))
    assert found.outcome in ("failed", "stopped", "no-failure", "not-sglang")
    assert found.verdict
    json.dumps(found.as_dict())


@given(st.integers(0, len(TEXT)))
def test_cut_anywhere_the_phase_only_grows(cut: int) -> None:
    whole, part = diagnose(read(TEXT)), diagnose(read(TEXT[:cut]))
    names = ["launch", "dist-init", "load"]
    assert names.index(part.state.phase) <= names.index(whole.state.phase)


def test_expressions_have_no_unbounded_repetition_of_anything() -> None:
    for one in signatures():
        for regex in (one.regex, one.cured_by):
            assert regex is None or ".*" not in regex.pattern
