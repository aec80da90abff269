"""The client's errors, the channel over a scripted pipe, and the fake's own machinery."""

from __future__ import annotations

import json
import queue
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import AgentError, ChannelLost, HostError, LeaseHeld, LeaseLost, OnHold, WorldMoved
from deployer.host.channel import ChannelHost, Tail, begin_agent, result_of
from deployer.host.client import HostClient
from deployer.host.hostkeys import pinned_fingerprint
from deployer.host.streams import translated
from deployer.records.endpoint import Endpoint
from deployer.records.events import RunLine
from deployer.records.host import ServiceState
from deployer.records.release import Release
from deployer.text import moment
from tests.fakes.host import Engine, FakeHost, FakeWorld


class ScriptedPipe:
    """Answers each request with what ``reply`` makes of it."""

    def __init__(self, reply: Any, status: int | None = None, said: str = "") -> None:
        self.reply, self.status, self.said = reply, status, said
        self.sent: list[dict[str, Any]] = []
        self.incoming: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.closed = False

    def send(self, data: bytes) -> None:
        if self.closed:
            raise OSError("closed")
        for line in data.splitlines():
            message = json.loads(line)
            self.sent.append(message)
            for piece in self.reply(message):
                self.incoming.put(piece)

    def recv(self) -> bytes:
        return self.incoming.get(timeout=10)

    def close(self) -> None:
        self.closed = True
        self.incoming.put(b"")

    def ending(self, wait: float = 0.0) -> tuple[int | None, str]:
        return self.status, self.said


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_answers_find_their_requests_whatever_the_pieces() -> None:
    def reply(message: dict[str, Any]) -> list[bytes]:
        data = line(id=999, ok={}) + line(id=message.get("id"), ok={"op": message.get("op")})
        return [data[:7], data[7:20], data[20:]]

    host = ChannelHost("h", ScriptedPipe(reply))
    assert host.call("a", timeout=5) == {"op": "a"}
    assert host.call("b", timeout=5) == {"op": "b"}
    host.close(bye=False)


def test_no_answer_in_time_is_a_lost_channel() -> None:
    host = ChannelHost("h", ScriptedPipe(lambda message: []))
    with pytest.raises(ChannelLost, match="no answer to a within"):
        host.call("a", timeout=0.05)
    host.close(bye=False)


def test_what_is_not_the_protocol_ends_the_channel() -> None:
    host = ChannelHost("h", ScriptedPipe(lambda message: [b"Last login: yesterday\n"]))
    with pytest.raises(ChannelLost, match="not the protocol"):
        host.call("a", timeout=5)
    host.close(bye=False)


def test_the_hosts_last_words_are_in_the_message() -> None:
    host = ChannelHost("h", ScriptedPipe(lambda message: [b""], said="Traceback\nMemoryError\n"))
    with pytest.raises(ChannelLost, match="MemoryError"):
        host.call("a", timeout=5)
    host.close(bye=False)


def test_a_cancelled_stream_tells_the_host_and_ends() -> None:
    pipe = ScriptedPipe(lambda message: [line(id=message["id"], event={"n": 1})] if "op" in message else [])
    host = ChannelHost("h", pipe)
    with host.stream("watch") as stream:
        assert stream.next(5) == {"n": 1}
        assert stream.next(0.01) is None
    with pytest.raises(StopIteration):
        stream.next(5)
    assert pipe.sent[-1] == {"cancel": pipe.sent[0]["id"]}
    host.close(bye=False)


def test_a_stream_ends_with_its_result_or_its_error() -> None:
    def reply(message: dict[str, Any]) -> list[bytes]:
        if message["op"] == "good":
            return [line(id=message["id"], ok={"x": 1})]
        return [line(id=message["id"], error={"code": "not-gone", "message": "no", "detail": {"pids": [7]}})]

    host = ChannelHost("h", ScriptedPipe(reply))
    stream = host.stream("good")
    with pytest.raises(StopIteration):
        stream.next(5)
    assert stream.result == {"x": 1}
    stream = host.stream("bad")
    with pytest.raises(AgentError) as caught:
        stream.next(5)
    assert (caught.value.code, caught.value.detail) == ("not-gone", {"pids": [7]})
    host.close(bye=False)


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (127, "bash: python3: command not found", "did not start.*not found"),
        (1, "deployer: needs Python 3.8 or later, this is 3.6.15", "too old"),
        (1, "something else", "did not start"),
        (None, "", "no answer in time"),
    ],
)
def test_why_no_agent_starts(status: int | None, said: str, expected: str) -> None:
    pipe = ScriptedPipe(None, status, said)
    pipe.incoming.put(b"")
    with pytest.raises(HostError, match=expected):
        begin_agent(pipe, "h", python="python3", timeout=5)
    assert pipe.closed


@pytest.mark.parametrize(
    ("code", "kind"),
    [("lease-held", LeaseHeld), ("lease-lost", LeaseLost), ("moved", WorldMoved), ("exists", AgentError)],
)
def test_the_hosts_refusals_in_the_operators_words(code: str, kind: type[Exception]) -> None:
    lease = {
        "owner": {"user": "ann", "host": "desk", "pid": 3, "command": "apply"},
        "expires_in": 12.4,
        "held_for": 181.2,
        "step": "bench",
        "service": "kimi",
    }
    error = translated(AgentError(code, "why", detail={"lease": lease}), "gpu1")
    assert type(error) is kind
    if kind is LeaseHeld:
        assert error.message == (
            "gpu1 is in use for kimi by ann@desk (apply, pid 3), begun 3 min ago, at the step 'bench'; "
            "the lease ends in 12 s if nothing more is heard of them"
        )


def test_a_hold_says_who_why_and_until_when() -> None:
    owner = {"user": "ann", "host": "desk", "pid": 0, "command": ""}
    hold = {"owner": owner, "reason": "load test", "since": 1.0, "until": None}
    error = translated(AgentError("on-hold", "why", detail={"hold": hold}), "gpu1")
    assert (type(error), error.exit_code) == (OnHold, 4)
    assert error.message == f"gpu1 is on hold since {moment(1.0)} by ann@desk: load test"
    ends = translated(AgentError("on-hold", "why", detail={"hold": {**hold, "until": 7200.0}}), "gpu1")
    assert f" until {moment(7200.0)} by " in ends.message


@pytest.mark.parametrize("lease", [None, {}, {"owner": "ann"}])
def test_a_lease_that_is_held_by_nobody_known_is_still_held(lease: object) -> None:
    error = translated(AgentError("lease-held", "why", detail={"lease": lease}), "gpu1")
    assert type(error) is LeaseHeld
    assert error.message == "gpu1 is in use by somebody; the lease ends in 0 s if nothing more is heard of them"


def test_a_release_whose_manifest_cannot_be_read_hides_no_other() -> None:
    corrupt = {"release": "0002-b", "number": 2, "state": "corrupt", "was_live": False}
    intact = Release("kimi", "0001-a", number=1)
    state = ServiceState.from_json({"releases": [intact.as_json(), corrupt]})
    assert state.releases == (intact, Release(release="0002-b", number=2, state="corrupt"))
    assert state.next_number == 3


@given(st.lists(st.text("abc\n", max_size=50)), st.integers(min_value=1, max_value=100))
def test_the_tail_keeps_the_end(pieces: list[str], limit: int) -> None:
    tail = Tail(limit)
    for piece in pieces:
        tail.add(piece.encode())
    kept = tail.text()
    assert "".join(pieces).endswith(kept)
    assert kept.endswith("".join(pieces[-1:]))
    assert len(kept) <= max(limit, len("".join(pieces[-1:])))


def test_a_pin_may_be_a_key_or_a_fingerprint() -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGBCx2RkYnx3lKVN7PbOsMkM0cNDXV5dYLZ3wZDDWMYJ"
    found = pinned_fingerprint(key)
    assert found.startswith("SHA256:")
    assert len(found) == len("SHA256:") + 43
    assert pinned_fingerprint(found) == found


# --- the fake ---------------------------------------------------------------------------------------------------


def test_the_fake_records_calls_and_raises_faults() -> None:
    world = FakeWorld(faults={"observe": [ChannelLost("gone")]})
    with closing(HostClient(FakeHost(world))) as client:
        with pytest.raises(ChannelLost):
            client.observe({"kimi": 1})
        assert client.observe({"kimi": 1}).services["kimi"].live is None
    assert [op for op, _ in world.calls] == ["observe", "observe"]


def test_the_fakes_engine_answers_when_it_is_ready() -> None:
    world = FakeWorld(engines={"0001-a": Engine(http={"/server_info": (200, "{}")})})
    world.make_live("kimi", "0001-a")
    endpoint = Endpoint("kimi", "127.0.0.1", 1)
    with closing(HostClient(FakeHost(world))) as client:
        assert client.http("GET", "/health", endpoint).status == 200
        assert client.http("GET", "/server_info?x=1", endpoint).body == "{}"
        assert client.http("GET", "/none", endpoint).status == 404
        world.engines["0001-a"] = Engine(ready_after=None)
        with pytest.raises(AgentError) as caught:
            client.http("GET", "/health", endpoint)
    assert caught.value.detail == {"state": "refused"}


def test_the_fakes_programs_print_what_the_world_says() -> None:
    world = FakeWorld(run=lambda args: ([str(args["argv"])], 3))
    with closing(HostClient(FakeHost(world))) as client:
        stream = client.run(["x"], timeout=1.0)
        assert stream.next() == RunLine("['x']")
        with pytest.raises(StopIteration):
            stream.next()
        assert stream.result.status == 3


def test_a_full_disk_of_the_host_is_called_one() -> None:
    full = {
        "code": "os-error",
        "message": "stage: [Errno 28] No space left on device",
        "detail": {"errno": 28},
    }
    with pytest.raises(AgentError) as caught:
        result_of({"error": full})
    assert "free some space on the host's disk" in (caught.value.remedy or "")
    with pytest.raises(AgentError) as caught:
        result_of({"error": {**full, "detail": {"errno": 13}}})
    assert "check the connection" in (caught.value.remedy or "")
