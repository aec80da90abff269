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
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from deployer.bench.load.sanity import against_baseline
from deployer.bench.load.spec import API_KEY_VARIABLE, Spec
from deployer.bench.log_windows import read_log, with_batches
from deployer.bench.merge import merged, once_more
from deployer.errors import AgentError, ConfigError, DeployerError, GateInconclusive
from deployer.host import ship
from deployer.host.client import HostClient

Json = dict[str, Any]
OnEvent = Callable[[Json], None]

#: The load client says something every second; a silence this long means that it is stuck, in seconds.
SILENCE = 120.0
_WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")


class _Engine(Protocol):
    @property
    def python(self) -> str: ...


class _Secret(Protocol):
    def resolve(self) -> str: ...


class Service(Protocol):
    """What the runner needs of a service's configuration (``ServiceConfig`` has it)."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def served_model_name(self) -> str | None: ...
    @property
    def port(self) -> int: ...
    @property
    def bind(self) -> str: ...
    @property
    def advertised(self) -> str | None: ...
    @property
    def engine(self) -> _Engine: ...
    @property
    def user(self) -> str | None: ...
    @property
    def gpus(self) -> Sequence[int] | None: ...
    @property
    def api_key(self) -> _Secret | None: ...


def run_benchmark(
    client: HostClient,
    service: Service,
    spec: Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    place: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    baseline: Json | None = None,
    again: Callable[[Json, float], Sequence[int]] | None = None,
    slots: int = 1,
    silence: float = SILENCE,
) -> Json:
    """Measure ``service`` and return the bench document, with ``place`` added.

    ``spec`` is a service's ``bench`` table (see `deployer.bench.load.spec.Spec`; ``place`` in it is the default
    for ``place``: ``host``, ``operator`` or ``auto``). ``on_event`` gets progress, and notes ``{"event":
    "note", "text"}``. ``base_url`` replaces the address that follows from the service. ``api_key`` defaults
    to the service's own. ``baseline`` is the bench document whose answer to the fixed prompt is compared.
    ``again`` is asked, with the document so far and the seconds of the budget that are left, which levels to
    measure once more, until it names none. ``slots`` is how many micro-batches the server turns over.

    Raises ConfigError (a spec or address that cannot be), GateInconclusive (the client could not run or
    died), the host's errors; KeyboardInterrupt passes through after the load has been stopped.
    """
    tell = on_event or (lambda _event: None)
    values = dict(spec)
    wanted = place or values.pop("place", None) or "auto"
    values.pop("place", None)
    if wanted not in ("auto", "host", "operator"):
        raise ConfigError(f"bench.place is {wanted!r}, but it is one of auto, host, operator")
    if api_key is None and service.api_key is not None:
        api_key = service.api_key.resolve()
    has_httpx = wanted != "operator" and engine_has_httpx(client, service)
    where, values["base_url"], note = choose_place(service, wanted, has_httpx=has_httpx, base_url=base_url)
    if note:
        tell({"event": "note", "text": note})
    if where == "host":  # elsewhere nvidia-smi would tell of other GPUs
        values.update(nvidia_smi=True, gpus=service.gpus)
    values["model"] = service.served_model_name or service.model
    try:
        checked = Spec.from_json(values)
    except ValueError as error:
        raise ConfigError(f"the benchmark of service {service.name} cannot be run: {error}") from error
    secret = {} if api_key is None else {API_KEY_VARIABLE: api_key}

    def measure(asked: Json) -> Json:
        limit = Spec.from_json(asked).worst_case()
        if where == "host":
            lines = _on_host(client, service, asked, secret, limit, silence)
        else:
            lines = _as_child(asked, secret, silence)
        found = _follow(lines, tell)
        if found is None:
            raise _no_result(where, "it ended without a result")
        return found

    ahead = _clock_ahead(client) if where == "operator" else 0.0
    bench = measure(values)
    if again is not None:
        bench = _repeated(bench, values, checked.budget, again, measure)
    if bench.get("started") is not None:
        began = bench["started"] + ahead
        bench = with_batches(bench, read_log(client, service.name, began), slots=slots, began=began)
    if bench.get("sanity"):
        bench["sanity"] = against_baseline(bench["sanity"], baseline)
    bench["place"] = where
    return bench


def _repeated(
    bench: Json,
    values: Json,
    budget: float,
    again: Callable[[Json, float], Sequence[int]],
    measure: Callable[[Json], Json],
) -> Json:
    """More passes of the levels that ``again`` names, while it names some and the budget lasts."""
    while not bench.get("interrupted") and not bench.get("stopped"):
        left = budget - bench["budget"]["used_s"]
        levels = again(bench, left) if left > 0 else ()
        if not levels:
            break
        asked = once_more(values, bench, levels, left)
        if not asked["levels"]:
            break
        try:
            bench = merged(bench, measure(asked))
        except GateInconclusive as error:  # what was measured before is as good as it was
            cut = [*bench["budget"]["cut"], f"another pass of {asked['levels']}: {error}"]
            return {**bench, "budget": {**bench["budget"], "cut": cut}}
    return bench


def _clock_ahead(client: HostClient) -> float:
    """Seconds by which the host's clock is ahead of ours, so that its log can be laid beside our times."""
    before = time.time()
    try:
        return client.hello().now - (before + time.time()) / 2
    except AgentError:
        return 0.0


def local_url(service: Service) -> str:
    """The service's address as seen on its host."""
    return f"http://{'127.0.0.1' if service.bind in _WILDCARDS else _bracketed(service.bind)}:{service.port}"


def operator_url(service: Service) -> str:
    """The service's address as seen from the operator's machine. ConfigError where it follows from nothing."""
    if service.advertised:
        return service.advertised
    loopback = service.bind == "localhost"
    with contextlib.suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(service.bind).is_loopback
    if loopback or service.bind in _WILDCARDS:
        raise ConfigError(
            f"service {service.name} binds to {service.bind!r}, so its address as seen from here is not known",
            remedy="set `advertised` to the URL that clients use, or run the benchmark on the host "
            '(bench.place = "host"; it needs httpx in the engine\'s environment)',
        )
    return f"http://{_bracketed(service.bind)}:{service.port}"


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def engine_has_httpx(client: HostClient, service: Service) -> bool:
    """Whether the engine's environment on the host can run the load client."""
    engine = client.observe({}, engine=service.engine.python).engine
    return bool(engine and engine.httpx)


def choose_place(
    service: Service, wanted: str, *, has_httpx: bool, base_url: str | None = None
) -> tuple[str, str, str | None]:
    """Where the load comes from (``host`` or ``operator``), the address it goes to, and a note where that needs one.

    ConfigError where ``wanted`` cannot be; pure, so that a preflight can ask before anything is started.
    """
    lacking = f"{service.engine.python} on the host has no httpx"
    if wanted == "host" and not has_httpx:
        raise ConfigError(
            f"the benchmark of service {service.name} is to run on the host, but {lacking}",
            remedy='install httpx there, or set bench.place = "operator"',
        )
    if wanted != "operator" and has_httpx:
        return "host", base_url or local_url(service), None
    note = None if wanted == "operator" else f"{lacking}: the load comes from here, over the network"
    return "operator", base_url or operator_url(service), note


def _on_host(
    client: HostClient, service: Service, values: Json, secret: dict[str, str], limit: float, silence: float
) -> Iterator[str]:
    """The client's lines, from the host. It runs as the service's account, whose environment the engine's is."""
    stream = ship.run(
        client,
        load_client(),
        service.engine.python,
        stdin=json.dumps(values),
        timeout=limit,
        environment=secret,
        user=service.user,
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
                    raise _no_result("host", f"{error.code}: {error.message}") from error
                if event is not None:
                    heard = time.monotonic()
                    yield event.line
                elif time.monotonic() - heard > silence:
                    raise _no_result("host", f"it said nothing for {silence:g} s")
        except BaseException:  # Ctrl-C and a reader that gives up as well: no load without an observer
            stream.cancel()
            raise
        status, errors = stream.result.status, stream.result.stderr
    if status not in (0, 130):
        raise _no_result("host", _died(status, errors))


@lru_cache(maxsize=1)
def load_client() -> ship.Program:
    """The load client as a program that can be sent."""
    return ship.pack("deployer.bench.load", "deployer.metrics")


def _as_child(values: Json, secret: dict[str, str], silence: float) -> Iterator[str]:
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
            yield from _lines(process, json.dumps(values), silence)
            status = process.wait(timeout=10)
        finally:
            _end(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if status not in (0, 130):
            errors.seek(0)
            raise _no_result("operator", _died(status, errors.read().decode("utf-8", "replace")))


def _lines(process: subprocess.Popen[str], text: str, silence: float) -> Iterator[str]:
    assert process.stdin is not None
    assert process.stdout is not None
    output = process.stdout
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def pump() -> None:
        with contextlib.suppress(
            ValueError
        ):  # closed, as a process of the client's still holds the other end
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
                line = lines.get(timeout=silence)
            except queue.Empty:
                raise _no_result("operator", f"it said nothing for {silence:g} s") from None
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


def _follow(lines: Iterator[str], tell: OnEvent) -> Json | None:
    """Hand progress on; the bench document of the last line."""
    bench: Json | None = None
    try:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a warning of some library on stdout is no event
            if not isinstance(event, dict):
                continue
            if event.get("event") == "result":
                bench = event["bench"]
            else:
                tell(event)
    finally:
        close = getattr(lines, "close", None)
        if close is not None:
            close()
    return bench


def _died(status: Any, errors: str) -> str:
    said = [line for line in errors.strip().splitlines() if line.strip()]
    how = f"it ended with status {status}"
    if isinstance(status, int) and status < 0:
        with contextlib.suppress(ValueError):
            how = f"it was killed ({signal.Signals(-status).name}), and what it had measured is lost"
    return how + (f": {said[-1].strip()}" if said else "")


def _no_result(where: str, why: str) -> DeployerError:
    place = "on the host" if where == "host" else "here"
    return GateInconclusive(
        f"the benchmark could not be completed: the load client {place}: {why}",
        phase="bench",
        remedy="measure again; where it comes again, look at that machine's memory (`dmesg`), or run it on "
        "the other side (bench.place)"
        if "killed" in why
        else "run it from the other side (bench.place), or look at the message above",
    )
