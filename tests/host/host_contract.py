"""What the contract tests share: three kinds of host, a small engine, and unit texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deployer.config.inventory import HostConfig
from deployer.host.channel import ChannelHost
from deployer.host.client import HostClient, Limits
from deployer.host.local import LocalHost
from deployer.host.protocol import Host, Stream
from deployer.host.ssh import SSHHost
from deployer.host.streams import Events
from deployer.records.answers import Converged, LeaseGrant, Started, Stopped
from deployer.records.endpoint import Endpoint
from deployer.records.events import StopEvent
from deployer.records.host import Exclusive, Owner, Transition
from deployer.records.release import Release
from deployer_rehearsal.host import RehearsalHost
from tests.fakes.host import Engine, FakeHost, FakeWorld
from tests.patience import PATIENCE

SERVICE = "kimi"
UNIT = f"sglang-{SERVICE}.service"
ENGINE = "/var/lib/sglang-test-engine.py"
PORT = 31000
#: A grace that outlasts all patience: what happens before its end is not the work of its end.
GRACE = 600.0

Event = TypeVar("Event")
Answer = TypeVar("Answer")

# Binds late, answers /health, dies or floods when told, drains at SIGTERM and refuses new requests at SIGINT: what the
# real engine does, in a few lines. Its name makes it a server of SGLang's.
ENGINE_SOURCE = """\
import argparse, http.server, os, signal, subprocess, sys, threading, time
p = argparse.ArgumentParser()
p.add_argument("--address", default="127.0.0.1"); p.add_argument("--port", type=int, default=0)
p.add_argument("--delay", type=float, default=0.1); p.add_argument("--say", default="")
p.add_argument("--crash", type=float); p.add_argument("--ignore-term", action="store_true")
p.add_argument("--child", action="store_true"); p.add_argument("--running", type=int)
p.add_argument("--flood", type=int, default=0); p.add_argument("--tokenizer-worker-num")
a = p.parse_args()
if a.ignore_term: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if a.child: subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"])
print("hello from the engine", flush=True)
sys.stdout.write("\\rloading 10%\\rloading 100%\\n"); sys.stdout.flush()
for n in range(a.flood): print("flood", n)
if a.say: print(a.say, flush=True)
if a.crash is not None:
    threading.Timer(a.crash, lambda: os._exit(7)).start()
late = "/run/engine-delay"
time.sleep(float(open(late).read()) if os.path.exists(late) else a.delay)
busy = 0
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global busy
        busy += 1
        try: self.answer()
        finally: busy -= 1
    def answer(self):
        body = b"ok"
        if self.path.startswith("/slow?"): time.sleep(float(self.path[6:]))
        if self.path == "/v1/loads" and a.running is not None:
            body = b'{"loads": [{"num_running_reqs": %d, "num_waiting_reqs": 1}]}' % a.running
        code = 200 if self.path == "/health" or (self.path == "/v1/loads" and a.running is not None) else 404
        if self.path == "/health" and os.path.exists("/run/engine-health"):
            code = int(open("/run/engine-health").read())
        self.send_response(code); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *x): pass
if not a.port: time.sleep(10000)
server = http.server.ThreadingHTTPServer((a.address, a.port), H)
server.daemon_threads = False
def drain():
    while busy: time.sleep(0.05)
    os._exit(0)
def shut(*_):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    threading.Thread(target=lambda: (server.shutdown(), server.socket.close())).start()
signal.signal(signal.SIGINT, shut)
if not a.ignore_term: signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drain).start())
server.serve_forever(0.05)
drain()
"""


class Connection(HostClient):
    """A connection that also speaks the protocol itself, and knows where the small engine listens."""

    def __init__(self, host: Host, address: str = "127.0.0.1") -> None:
        super().__init__(host)
        self.host = host
        self.endpoint = Endpoint(SERVICE, address, PORT)


@dataclass
class Place:
    """One kind of host, to which any number of connections can be made."""

    kind: str
    address: str
    open: Callable[[], Any]
    world: FakeWorld | None = None
    rehearsal: RehearsalHost | None = None
    clients: list[Connection] = field(default_factory=list)

    def connect(self) -> Connection:
        client = Connection(self.open(), self.address)
        self.clients.append(client)
        return client

    def operator(self, ttl: float = 30.0, command: str = "apply") -> Connection:
        """A connection that holds the lease."""
        client = self.connect()
        acquire(client, ttl=ttl, command=command)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()

    def run(self, *argv: str, stdin: str | None = None) -> str:
        """Run a program on the real host, beside the connections."""
        assert self.rehearsal is not None
        return self.rehearsal.run(list(argv), stdin=stdin).strip()

    def write(self, path: str, text: str) -> None:
        """Write a file on the real host, with its folder."""
        self.run("mkdir", "-p", str(Path(path).parent))
        self.run("tee", path, stdin=text)

    def script(self, release: str, **behaviour: Any) -> None:
        """Tell the fake what the engine's arguments tell the real one."""
        if self.world is not None:
            self.world.engines[release] = Engine(**behaviour)


def acquire(client: HostClient, *, ttl: float = 30.0, command: str = "apply", **more: Any) -> LeaseGrant:
    owner = Owner("ann", "desk", 1, command)
    return client.lease_acquire(owner=owner, service=SERVICE, reason="test", ttl=ttl, **more)


def make_place(kind: str, host: RehearsalHost | None) -> Place:
    if kind == "fake":
        world = FakeWorld()
        return Place(kind, "127.0.0.1", lambda: FakeHost(world), world=world)
    assert host is not None
    host.run(["tee", ENGINE], stdin=ENGINE_SOURCE)
    host.run(["sync", ENGINE])  # or a power cut leaves an empty file

    def local() -> ChannelHost:
        prefix = ["nsenter", "-t", str(host.pid), "-a", "--"]
        return LocalHost("local", python="/usr/bin/python3", prefix=prefix)

    def ssh() -> ChannelHost:
        return SSHHost(HostConfig(**host.host_config).destination)

    return Place(kind, host.address, local if kind == "local" else ssh, rehearsal=host)


def unit_text(release: str, place: Place, *engine: str, candidate: bool = True, extra: str = "") -> str:
    """A unit that runs the small engine."""
    words = ["--address", place.address, "--port", str(PORT), *engine]
    command = " ".join(f'"{word}"' for word in words)
    return f"""\
[Unit]
Description=test engine

[Service]
Type=exec
ExecStart=:/usr/bin/python3 {ENGINE} {command}
Environment=DEPLOYER_RELEASE={release}
Restart={"no" if candidate else "on-failure"}
RestartSec=2
TimeoutStopSec=60
LogRateLimitIntervalSec=1ms
LogRateLimitBurst=1000000
{extra}
[X-Deployer]
Release={release}
"""


def stage(client: HostClient, release: str, **files: str) -> str:
    record = Release(SERVICE, release, number=int(release[:4]), state="staged")
    texts = {"unit": "the unit", **files}
    return client.stage(record, {k: {"text": v, "mode": 0o644} for k, v in texts.items()})


def begin(
    client: HostClient,
    before: str | None,
    to: str,
    *,
    grace: float = GRACE,
    exclusive: tuple[Exclusive, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:
    transition = Transition(
        to=to,
        from_=before,
        profile="p",
        step="stop",
        grace=grace,
        port=PORT,
        stop_timeout=10.0,
        exclusive=exclusive,
        extra=extra or {},
    )
    client.transition_begin(SERVICE, transition)


def make_other_live(place: Place) -> Exclusive:
    """Put a second service on the host, enabled and running, which is to make room for the first."""
    other = Exclusive("mini", PORT + 1, stop_timeout=10.0)
    place.script("0001-m", port=other.port)
    if place.world is not None:
        place.world.make_live(other.service, "0001-m")
        return other
    install = "[Install]\nWantedBy=multi-user.target\n"
    text = unit_text("0001-m", place, "--port", str(other.port), candidate=False, extra=install)
    place.write("/usr/local/lib/systemd/system/sglang-mini.service", text)
    place.run("systemctl", "daemon-reload")
    place.run("systemctl", "enable", "--now", "sglang-mini.service")
    place.run("sync")  # or a power cut leaves an empty file
    return other


def other_service(client: HostClient) -> tuple[str | None, bool]:
    """What runs of the second service, and whether it is enabled."""
    state = client.observe({"mini": PORT + 1}).services["mini"]
    return state.running_name, state.enabled


def take_its_place(place: Place, client: Connection, other: Exclusive, release: str) -> Started:
    """Stage a release and start it in the place of the second service."""
    place.script(release, port=PORT)
    stage(client, release)
    begin(client, None, release, exclusive=(other,))
    assert other_service(client) == ("0001-m", True)
    assert finish(client.unit_exclude(SERVICE))[1].stopped == ("mini",)
    assert other_service(client) == (None, False)
    return client.unit_start(SERVICE, release, unit_text(release, place))


def finish(stream: Events[Event, Answer], timeout: float = PATIENCE) -> tuple[list[Event], Answer]:
    """Return all events of a stream, and its answer."""
    events: list[Event] = []
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            event = stream.next(0.5)
        except StopIteration:
            return events, stream.result
        if event is not None:
            events.append(event)
    raise AssertionError(f"the stream did not end in {timeout} s; last events: {events[-3:]}")


def stop(client: Connection, *, stop_timeout: float = 10.0) -> Stopped:
    return finish(client.unit_stop(client.endpoint, Limits(0.0, stop_timeout, 0.0)))[1]


def converge(
    client: Connection, *, ready_timeout: float = 60.0, repair: bool = False, await_ready: bool = True
) -> Converged:
    limits = Limits(0.0, 10.0, ready_timeout)
    return finish(client.converge(client.endpoint, limits, repair=repair, await_ready=await_ready))[1]


def converge_unasked(client: Connection) -> Converged:
    """Make the host equal to its live release, but start nothing that did not run (as the guard does)."""
    args = Limits(0.0, 10.0, 60.0).arguments(client.endpoint) | {"ready_timeout": 60.0, "start": False}
    stream: Stream = client.host.stream("converge", args)
    return finish(Events(stream, client.name, StopEvent.from_json, Converged.from_json))[1]


def observe(client: HostClient) -> Any:
    """Return the `ServiceState`; as Any, since tests know what is there."""
    return client.observe({SERVICE: PORT}).services[SERVICE]


def go_live(place: Place, client: Connection, release: str, *engine: str, before: str | None = None) -> Started:
    """Deploy a release for real: stage, transition, start, promote, converge."""
    stage(client, release)
    begin(client, before, release)
    stop(client)
    started = client.unit_start(SERVICE, release, unit_text(release, place, *engine))
    text = unit_text(release, place, *engine, candidate=False)
    client.promote(SERVICE, release, text, expect_live=before, expect_invocation=started.invocation_id)
    answer = converge(client)
    assert answer.serving, answer
    return started


def deploying(place: Place, *, grace: float = GRACE) -> Connection:
    """An operator in mid-deployment of 0002-b over a live 0001-a; nothing is stopped yet."""
    client = place.operator()
    go_live(place, client, "0001-a")
    stage(client, "0002-b")
    begin(client, "0001-a", "0002-b", grace=grace)
    return client
