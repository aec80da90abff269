"""What the machine shows, and how it is read: journal, control groups, sockets, drop-ins, a systemd that is away."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer import reach
from deployer.host.agent import base, procs
from deployer.host.agent.machine import Machine, journal_argv, journal_lines

Done = subprocess.CompletedProcess[str]


# --- journal ----------------------------------------------------------------------------------------------------


def entry(message: Any, **fields: str) -> dict[str, Any]:
    return {"MESSAGE": message, "__REALTIME_TIMESTAMP": "1500000", "_PID": "42", **fields}


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("one", [("one", False)]),
        ("", []),
        (None, []),
        ("a\rb\rc", [("a", True), ("b", True), ("c", False)]),
        ("\r10%\r100%", [("10%", True), ("100%", False)]),
        ("a\r\nb\n", [("a", False), ("b", False)]),
        (list("grüß\rx".encode()), [("grüß", True), ("x", False)]),
        ([255, 65], [("\ufffdA", False)]),
        (["first", "second"], [("first", False)]),
    ],
)
def test_lines_of_a_journal_entry(message: Any, lines: list[tuple[str, bool]]) -> None:
    read = list(journal_lines(entry(message)))
    assert [(line["text"], line["piece"]) for line in read] == lines
    assert all((line["t"], line["source"]) == (1.5, "engine") for line in read)


def test_systemds_own_lines_are_distinguished() -> None:
    assert [line["source"] for line in journal_lines(entry("Started x.", _PID="1"))] == ["systemd"]


@given(st.text())
def test_no_character_of_a_message_is_lost(text: str) -> None:
    lines = list(journal_lines(entry(text)))
    assert "".join(line["text"] for line in lines) == text.replace("\r", "").replace("\n", "")
    assert not any(set("\r\n") & set(line["text"]) or not line["text"] for line in lines)


@given(st.binary())
def test_bytes_of_a_message_never_raise(data: bytes) -> None:
    texts = [line["text"] for line in journal_lines(entry(list(data)))]
    assert all(isinstance(text, str) for text in texts)


def test_the_journal_is_asked_for_the_unit_one_start_or_the_kernel() -> None:
    head = ["journalctl", "-q", "-o", "json", "--all", "--lines=1"]
    assert journal_argv("u", ["--lines=1"]) == [*head, "_SYSTEMD_UNIT=u", "+", "UNIT=u", "_UID=0"]
    one = ["_SYSTEMD_INVOCATION_ID=i", "+", "INVOCATION_ID=i", "_UID=0"]
    assert journal_argv("u", ["--lines=1"], "i") == [*head, *one]
    assert journal_argv("u", ["--lines=1"], "i", kernel=True) == [*head, "_TRANSPORT=kernel"]


# --- control groups and sockets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "pid", "expected"),
    [
        ("0::/init.scope\n", "0::/system.slice/a.service\n", "/system.slice/a.service"),
        (
            "9:name=systemd:/init.scope\n0::/init.scope\n",
            "9:name=systemd:/system.slice/a.service/sub\n3:cpu:/x\n0::/\n",
            "/system.slice/a.service/sub",
        ),
        (
            "9:name=systemd:/\n0::/init.scope\n",
            "9:name=systemd:/\n0::/system.slice/a.service\n",
            "/system.slice/a.service",
        ),
        (
            "0::/outer.scope/init.scope\n",
            "0::/outer.scope/system.slice/a.service\n",
            "/system.slice/a.service",
        ),
    ],
)
def test_control_groups_of_v1_v2_and_hybrid(
    monkeypatch: pytest.MonkeyPatch, init: str, pid: str, expected: str
) -> None:
    texts = {"/proc/1/cgroup": init, "/proc/42/cgroup": pid}
    monkeypatch.setattr(procs, "read_text", texts.get)
    procs.systemd_hierarchy.cache_clear()
    try:
        assert procs.cgroup_of(42) == expected
        assert procs.unit_of(procs.cgroup_of(42)) == "a.service"
        assert procs.cgroup_of(43) == ""
    finally:
        procs.systemd_hierarchy.cache_clear()


def test_a_unit_inside_a_container_is_not_ours() -> None:
    inner = "/machine.slice/docker-1.scope/system.slice/sglang-kimi.service"
    assert procs.unit_of(inner) == "docker-1.scope"


def test_addresses_as_the_kernel_writes_them() -> None:
    assert procs.socket_address("0100007F") == "127.0.0.1"
    assert procs.socket_address("0" * 32) == "::"
    assert procs.socket_address("0000000000000000FFFF00000100007F") == "::ffff:127.0.0.1"


@pytest.mark.parametrize(
    ("bound", "address", "serves", "collides"),
    [
        ("127.0.0.1", "127.0.0.1", True, True),
        ("127.0.0.1", "10.0.0.1", False, False),
        ("0.0.0.0", "10.0.0.1", True, True),
        ("::", "10.0.0.1", True, True),
        ("127.0.0.1", "0.0.0.0", False, True),
        ("::ffff:10.0.0.1", "10.0.0.1", True, True),
        ("10.0.0.1", "::ffff:10.0.0.1", True, True),
        ("10.0.0.1", "", False, False),
    ],
)
def test_who_answers_where(bound: str, address: str, serves: bool, collides: bool) -> None:
    assert (reach.serves(bound, address), reach.collides(bound, address)) == (serves, collides)


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7918 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11
   1: 0100007F:7918 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 12
   2: 0100000A:7918 0200000A:9C41 01 00000000:00000000 00:00000000 00000000     0        0 13
   3: 0100007F:0016 0100007F:9C42 01 00000000:00000000 00:00000000 00000000     0        0 14
"""


def test_listeners_and_connections_of_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "read_text", {"/proc/net/tcp": TCP}.get)
    monkeypatch.setattr(procs, "socket_owners", lambda inodes, pids: {"11": 7})
    machine = Machine()
    assert [(item["address"], item["pid"]) for item in machine.listeners(0x7918)] == [("127.0.0.1", 7)]
    assert [machine.connections(0x7918, bound) for bound in ("0.0.0.0", "127.0.0.1", "::1")] == [2, 1, 0]


def test_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "read_text", lambda path: "MemFree:  1 kB\nMemTotal:       24 kB\n")
    assert Machine().memory_total() == 24 << 10
    monkeypatch.setattr(procs, "read_text", lambda path: None)
    assert Machine().memory_total() is None


# --- systemd ----------------------------------------------------------------------------------------------------


def test_systemctl_is_called_again_while_systemd_re_executes(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "Failed to get properties: Connection reset by peer"
    answers = [(1, gone), (1, "Failed to connect to bus: No such file"), (0, ""), (1, "Unit x not found.")]
    calls: list[list[str]] = []

    class Scripted(Machine):
        def execute(self, argv: list[str], *args: Any, **options: Any) -> Done:
            calls.append(argv)
            status, text = answers[len(calls) - 1]
            return subprocess.CompletedProcess(argv, status, "ActiveState=active\n", text)

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    machine = Scripted()
    assert machine.unit_state("x.service")["ActiveState"] == "active"
    assert len(calls) == 3
    with pytest.raises(base.Fail, match="not found"):
        machine.systemctl("start", "x")
    assert len(calls) == 4, "what systemd itself answers is final"


def test_drop_ins_of_the_name_its_prefixes_and_its_kind(tmp_path: Path) -> None:
    etc, lib = tmp_path / "etc", tmp_path / "lib"
    for path in (
        etc / "sglang-kimi-2.service.d" / "a.conf",
        lib / "sglang-kimi-2.service.d" / "a.conf",
        lib / "sglang-kimi-.service.d" / "b.conf",
        lib / "sglang-.service.d" / "c.conf",
        lib / "service.d" / "d.conf",
        lib / "sglang-kimi-2.service.d" / "notes.txt",
        lib / "sglang-other.service.d" / "e.conf",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (etc / "service.d").mkdir()
    (etc / "service.d" / "d.conf").symlink_to("/dev/null")

    class Scripted(Machine):
        def systemctl(self, *words: str, check: bool = True) -> Done:
            return subprocess.CompletedProcess(["systemctl"], 0, f"{etc} {lib}\n", "")

    drop_ins = Scripted().drop_ins("sglang-kimi-2.service")
    assert [str(Path(path).relative_to(tmp_path)) for path in drop_ins] == [
        "etc/sglang-kimi-2.service.d/a.conf",
        "lib/sglang-kimi-.service.d/b.conf",
        "lib/sglang-.service.d/c.conf",
    ]
