"""Runs the load client where it measures best, and returns the bench document.

On the host itself (through the agent, with the engine's own Python) the network is not measured and nothing
is installed; it needs httpx there. From the operator's machine the client runs as a child process, against
the advertised address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from deployer.bench.load.spec import API_KEY_VARIABLE, Spec
from deployer.bench.merge import against_baseline, merged, once_more
from deployer.bench.server import read_log, with_server
from deployer.config.inventory import ServiceConfig
from deployer.errors import AgentError, ConfigError, DeployerError, GateInconclusive
from deployer.host import ship
from deployer.host.client import HostClient
from deployer.reach import WILDCARDS
from deployer.records.bench import BenchRun, Budget
from deployer.records.codec import BadRecord, Json
from deployer.records.endpoint import Endpoint

OnEvent = Callable[[Json], None]
#: Says, from the benchmark so far and the seconds of the budget that are left, which levels to measure once more.
Again = Callable[[BenchRun, float], Sequence[int]]

#: The load client writes a line every second; if it is silent for this many seconds it is stuck.
SILENCE = 120.0


@dataclass(frozen=True)
class Target:
    """The server to measure: where it is reached, what it serves, and what the load client needs on its host.

    ``advertised`` is the URL that clients use, ``user`` the account of the engine, whose ``python`` runs the client.
    """

    endpoint: Endpoint
    model: str
    python: str
    advertised: str | None = None
    user: str | None = None
    gpus: Sequence[int] | None = None

    @classmethod
    def of(cls, service: ServiceConfig, endpoint: Endpoint, model: str | None = None) -> Target:
        """Return the target that a service is at ``endpoint``; ``model`` is the name it serves, by default as set."""
        model = model or service.served_model_name or service.model
        return cls(endpoint, model, service.engine.python, service.advertised, service.user, service.gpus)

    @property
    def local_url(self) -> str:
        """Its address as seen on its host."""
        address = self.endpoint.address
        return _url("127.0.0.1" if not address or address in WILDCARDS else address, self.endpoint.port)

    @property
    def operator_url(self) -> str:
        """Its address as seen from the operator's machine. Raise ConfigError if it follows from nothing."""
        if self.advertised:
            return self.advertised
        address = self.endpoint.address
        loopback = address == "localhost"
        with contextlib.suppress(ValueError):
            loopback = loopback or ipaddress.ip_address(address).is_loopback
        if loopback or not address or address in WILDCARDS:
            raise ConfigError(
                f"service {self.endpoint.service} binds to {address!r}, so its address as seen from here is unknown",
                remedy="set `advertised` to the URL that clients use, or run the benchmark on the host "
                '(bench.place = "host"; it needs httpx in the engine\'s environment)',
            )
        return _url(address, self.endpoint.port)


def _url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


@dataclass(frozen=True)
class Place:
    """Where the load comes from (``host`` or ``operator``), the address it goes to, and a note if that needs one."""

    name: str
    url: str = ""
    note: str | None = None

    @property
    def on_host(self) -> bool:
        """Whether it comes from the host."""
        return self.name == "host"


_HOST, _OPERATOR = Place("host"), Place("operator")


def run_benchmark(
    client: HostClient,
    target: Target,
    spec: Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    baseline: BenchRun | None = None,
    again: Again | None = None,
    slots: int = 1,
) -> BenchRun:
    """Measure ``target`` and return the benchmark.

    ``spec`` is a service's ``bench`` table (`deployer.config.bench.BenchConfig`). ``on_event`` gets progress, and notes
    ``{"event": "note", "text"}``. The answer to the fixed prompt is compared with that of ``baseline``. ``again`` names
    the levels to measure once more, until it names none. ``slots`` is how many micro-batches the server turns over.

    Raise ConfigError (an invalid spec, an unknown address), GateInconclusive (the client could not run or died), and
    the host's errors; KeyboardInterrupt passes through after the load has been stopped.
    """
    notify = on_event or (lambda _event: None)
    values = {name: value for name, value in spec.items() if name != "place"}
    wanted = spec.get("place") or "auto"
    if wanted not in ("auto", "host", "operator"):
        raise ConfigError(f"bench.place is {wanted!r}; it must be one of auto, host, operator")
    engine = None if wanted == "operator" else client.observe({}, engine=target.python).engine
    place = choose_place(target, wanted, has_httpx=bool(engine and engine.httpx))
    if place.note:
        notify({"event": "note", "text": place.note})
    if place.on_host:  # elsewhere nvidia-smi would report other GPUs
        values.update(nvidia_smi=True, gpus=target.gpus)
    values |= {"base_url": place.url, "model": target.model}
    try:
        budget = Spec.from_json(values).budget
    except ValueError as error:
        service = target.endpoint.service
        raise ConfigError(f"the benchmark of service {service} cannot be run: {error}") from error
    secret = {} if target.endpoint.api_key is None else {API_KEY_VARIABLE: target.endpoint.api_key}

    def measure(values: Json) -> BenchRun:
        lines = _on_host(client, target, values, secret) if place.on_host else _as_child(values, secret)
        bench = _follow(lines, notify)
        if bench is None:
            raise _no_result(place, "it ended without a result")
        return bench

    ahead = 0.0 if place.on_host else _clock_ahead(client)
    bench = measure(values)
    if again is not None:
        bench = _repeated(bench, values, budget, again, measure)
    began = (bench.started or 0.0) + ahead
    log = read_log(client, target.endpoint.service, began) if bench.started is not None else []
    bench = with_server(bench, log, slots=slots, began=began)
    return replace(bench, sanity=bench.sanity and against_baseline(bench.sanity, baseline), place=place.name)


def _repeated(
    bench: BenchRun, values: Json, budget: float, again: Again, measure: Callable[[Json], BenchRun]
) -> BenchRun:
    """More passes of the levels that ``again`` names, while it names some and the budget lasts."""
    while not bench.interrupted and not bench.stopped:
        spent = bench.budget or Budget()
        left = budget - spent.used_s
        more = once_more(values, bench, again(bench, left) if left > 0 else (), left)
        if not more["levels"]:
            break
        try:
            bench = merged(bench, measure(more))
        except GateInconclusive as error:  # what was measured before is as good as it was
            cut = (*spent.cut, f"another pass of {more['levels']}: {error}")
            return replace(bench, budget=replace(spent, cut=cut))
    return bench


def _clock_ahead(client: HostClient) -> float:
    """Seconds by which the host's clock is ahead of ours, so that its log can be laid beside our times."""
    before = time.time()
    try:
        return client.hello().now - (before + time.time()) / 2
    except AgentError:
        return 0.0


def choose_place(target: Target, wanted: str, *, has_httpx: bool) -> Place:
    """Return where the load comes from. Raise ConfigError if it cannot come from where it is wanted.

    Pure, so that a preflight can ask before anything is started.
    """
    lacking = f"{target.python} on the host has no httpx"
    if wanted == "host" and not has_httpx:
        raise ConfigError(
            f"the benchmark of service {target.endpoint.service} is to run on the host, but {lacking}",
            remedy='install httpx there, or set bench.place = "operator"',
        )
    if wanted != "operator" and has_httpx:
        return Place("host", target.local_url)
    note = None if wanted == "operator" else f"{lacking}: the load comes from here, over the network"
    return Place("operator", target.operator_url, note)


def _on_host(client: HostClient, target: Target, values: Json, secret: dict[str, str]) -> Iterator[str]:
    """The client's lines, from the host. It runs as the service's account, whose environment the engine's is."""
    program = load_client()
    stream = client.run(
        [target.python, program.file],
        stdin=json.dumps(values),
        env=secret,
        timeout=Spec.from_json(values).worst_case(),
        user=target.user,
        files={program.file: program.text},
    )
    with stream:
        heard = time.monotonic()
        try:
            while True:
                try:
                    event = stream.next(timeout=1.0)
                except StopIteration:
                    break
                except AgentError as error:
                    raise _no_result(_HOST, f"{error.code}: {error.message}") from error
                if event is not None:
                    heard = time.monotonic()
                    yield event.line
                elif time.monotonic() - heard > SILENCE:
                    raise _no_result(_HOST, f"it was silent for {SILENCE:g} s")
        except BaseException:  # Ctrl-C and a reader that gives up as well: no load without an observer
            stream.cancel()
            raise
        ended = stream.result
    if ended.status not in (0, 130):
        raise _no_result(_HOST, _died(ended.status, ended.stderr))


@lru_cache(maxsize=1)
def load_client() -> ship.Program:
    """The load client as a program that can be sent."""
    return ship.pack("deployer.bench.load", "deployer.metrics")


def _as_child(values: Json, secret: dict[str, str]) -> Iterator[str]:
    """The client's lines, from a child process; in a session of its own, so that Ctrl-C reaches it through us."""
    client = load_client()
    with tempfile.TemporaryDirectory(prefix="deployer-bench-") as folder, tempfile.TemporaryFile() as errors:
        path = Path(folder) / client.file
        path.write_text(client.text, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **secret},
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
        try:
            yield from _lines(process, json.dumps(values))
            status = process.wait(timeout=10)
        finally:
            _end(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if status not in (0, 130):
            errors.seek(0)
            raise _no_result(_OPERATOR, _died(status, errors.read().decode("utf-8", "replace")))


def _lines(process: subprocess.Popen[str], text: str) -> Iterator[str]:
    assert process.stdin is not None
    assert process.stdout is not None
    output = process.stdout
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def pump() -> None:
        with contextlib.suppress(ValueError):  # closed, as a process of the client's still holds the other end
            for line in output:
                lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    with contextlib.suppress(BrokenPipeError):  # it died at once; its status tells
        process.stdin.write(text)
        process.stdin.close()
    try:
        while True:
            try:
                line = lines.get(timeout=SILENCE)
            except queue.Empty:
                raise _no_result(_OPERATOR, f"it was silent for {SILENCE:g} s") from None
            if line is None:
                return
            yield line
    finally:
        _end(process)
        reader.join(timeout=5)  # before its pipe is closed under it


def _end(process: subprocess.Popen[str]) -> None:
    """See to it that the child is gone."""
    if process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)  # it has closed its stdout: it is about to go by itself
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _follow(lines: Iterator[str], notify: OnEvent) -> BenchRun | None:
    """Hand progress on; return the benchmark of the last line."""
    bench: BenchRun | None = None
    try:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a warning of some library on stdout
            if not isinstance(event, dict):
                continue
            if event.get("event") == "result":
                with contextlib.suppress(BadRecord):
                    bench = BenchRun.from_json(event.get("bench") or {})
            else:
                notify(event)
    finally:
        close = getattr(lines, "close", None)
        if close is not None:
            close()
    return bench


def _died(status: int, errors: str) -> str:
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    how = f"it ended with status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = f"it was killed ({signal.Signals(-status).name}), and what it had measured is lost"
    return how + (f": {lines[-1].strip()}" if lines else "")


def _no_result(place: Place, why: str) -> DeployerError:
    return GateInconclusive(
        f"the benchmark could not be completed: the load client {'on the host' if place.on_host else 'here'}: {why}",
        phase="bench",
        remedy="measure again; if it happens again, look at that machine's memory (`dmesg`), or run it on "
        "the other side (bench.place)"
        if "killed" in why
        else "run it from the other side (bench.place), or look at the message above",
    )
