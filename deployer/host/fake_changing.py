"""The fake host's operations that change it or follow it, and the table of all operations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from deployer.errors import AgentError
from deployer.host.fake_reading import (
    acquire,
    hello,
    http,
    listeners,
    observe,
    release,
    release_read,
    renew,
    sample,
    unit_state,
)
from deployer.host.fake_world import manifest_argv, manifest_of, release_of
from deployer.records.codec import Json

if TYPE_CHECKING:
    from deployer.host.fake import FakeHost

Events = Generator[Json | None, None, Json]
Operation = Callable[["FakeHost", Json], Json]
StreamingOperation = Callable[["FakeHost", Json], Events]

#: When every log of a fake begins: two looks at one line show the same time, however slow the machine is.
_LOGGED = time.time()


def text_of(file: Any) -> str:
    return str(file if isinstance(file, str) else file["text"])


def stage(host: FakeHost, args: Json) -> Json:
    host.own()
    state, name = host.world.service(args["service"]), args["release"]
    if name in state.releases:
        raise AgentError("exists", f"release {name} exists already")
    files = {key: text_of(file) for key, file in args["files"].items()}
    state.releases[name] = {"manifest": {**args["manifest"], "release": name, "schema": 1}, "files": files}
    return {"path": f"/var/lib/deployer/{args['service']}/releases/{name}"}


def release_update(host: FakeHost, args: Json) -> Json:
    host.own()
    state = host.world.service(args["service"])
    manifest = manifest_of(state, args["release"])
    manifest.update(args.get("patch") or {})
    files = state.releases[args["release"]]["files"]
    files.update({key: text_of(file) for key, file in (args.get("files") or {}).items()})
    for key, text in (args.get("append") or {}).items():
        files[key] = files.get(key, "") + text
    return {"manifest": manifest}


def probe(host: FakeHost, args: Json) -> Json:
    """systemd understands everything here: the argv is that of the newest staged release."""
    host.own()
    state = host.world.service(args["service"])
    argv = manifest_argv(state, release_of(args["text"]) or "")
    return {
        "verify": {"status": 0, "lines": []},
        "argv": argv,
        "properties": {},
        "load_error": None,
        "drop_ins": [],
    }


def begin(host: FakeHost, args: Json) -> Json:
    host.own()
    state, wanted = host.world.service(args["service"]), args["transition"]
    if state.transition and state.transition["to"] != wanted["to"]:
        detail = {"transition": state.transition}
        raise AgentError("exists", f"a transition to {state.transition['to']} is under way", detail=detail)
    facts = {"was_active": state.running is not None, "was_enabled": state.enabled, "started": time.time()}
    stamps = {"boot_id": host.world.boot_id, "updated": time.time(), "schema": 1}
    state.transition = {**facts, **(state.transition or {}), **wanted, **stamps}
    return {"transition": state.transition}


def step(host: FakeHost, args: Json) -> Json:
    host.own()
    state = host.world.service(args["service"])
    if state.transition is None:
        raise AgentError("no-transition", "no transition is under way")
    state.transition.update(args.get("patch") or {}, step=args["step"], updated=time.time())
    return {"transition": state.transition}


def end(host: FakeHost, args: Json) -> Json:
    host.own()
    host.world.service(args["service"]).transition = None
    return {}


def unit_start(host: FakeHost, args: Json) -> Json:
    host.own()
    world, state = host.world, host.world.service(args["service"])
    if release_of(args["text"]) != args["release"]:
        raise AgentError("bad-request", "the candidate's Release= is another")
    if state.transition is None:
        raise AgentError("no-transition", "no transition is under way")
    if state.transition["to"] != args["release"] or unit_state(world, state)["ActiveState"] == "active":
        raise AgentError("moved", "another transition, or something runs")
    state.candidate = args["text"]
    world.start(state, args["release"])
    begun = {"invocation_id": state.invocation_id, "cursor": "fake", "started_boottime": state.started}
    state.transition.update(begun)
    return begun


def promote(host: FakeHost, args: Json) -> Json:
    host.own()
    world, state, expect = host.world, host.world.service(args["service"]), args["expect"]
    world.settle(state)
    if release_of(args["text"]) != args["release"]:
        raise AgentError("bad-request", "the live unit's Release= is another")
    seen = {"live": release_of(state.live), "invocation_id": state.invocation_id, "running": state.running}
    if seen != {
        "live": expect.get("live"),
        "invocation_id": expect["invocation_id"],
        "running": args["release"],
    }:
        raise AgentError("moved", "the host is not as it was verified", detail=seen)
    state.live = args["text"]
    return {}


def prune(host: FakeHost, args: Json) -> Json:
    host.own()
    state, transition = (
        host.world.service(args["service"]),
        host.world.service(args["service"]).transition or {},
    )
    names = sorted(state.releases, key=lambda name: state.releases[name]["manifest"].get("number") or 0)
    live = release_of(state.live)
    good = [name for name in names if manifest_of(state, name).get("was_live") and name != live]
    spared = {live, transition.get("from"), transition.get("to"), *good[-1:]}
    removed = [name for name in names[: max(0, len(names) - int(args["keep"]))] if name not in spared]
    for name in removed:
        del state.releases[name]
    return {"removed": removed}


# --- streaming --------------------------------------------------------------------------------------------------


def unit_stop(host: FakeHost, args: Json) -> Events:
    host.own()
    state = host.world.service(args["service"])
    if state.running:
        yield {"stage": "stopping", "inflight": None, "pids": [1], "port": True}
    host.own()
    state.running, state.failed = None, False
    return {"seconds": 0.0, "inflight": None, "killed": False}


def converge(host: FakeHost, args: Json) -> Events:
    host.own()
    world, state = host.world, host.world.service(args["service"])
    actions: list[str] = []
    live, transition = release_of(state.live), state.transition or {}
    wanted = bool(args.get("start")) or (state.live is not None and transition.get("to") == live)
    world.settle(state)
    if state.running and state.running != live and (state.live or state.candidate or transition):
        state.running = None
        actions.append("stopped what was not live")
        yield {"action": actions[-1]}
    host.own()
    if state.candidate is not None:
        state.candidate = None
        actions.append("candidate removed")
        yield {"action": actions[-1]}
    started = serving = False
    if state.live is not None:
        state.enabled = state.enabled or wanted or bool(transition.get("was_enabled"))
        if state.running is None and (wanted or transition.get("was_active")):
            world.start(state, live)
            started = True
            actions.append("started")
            yield {"action": "started"}
        patience = float(args.get("ready_timeout") or 0.0) if args.get("await_ready", True) else 0.0
        deadline = time.monotonic() + patience
        while state.running and not (serving := world.ready(state)) and time.monotonic() < deadline:
            yield None
            world.settle(state)
    host.own()
    for name, item in state.releases.items():
        mark(item["manifest"], name, live, transition.get("to"))
    state.transition = None
    return {
        "live": live,
        "actions": actions,
        "started": started,
        "invocation_id": state.invocation_id if state.running else None,
        "cursor": "fake" if state.running else None,
        "started_boottime": state.started if started else None,
        "serving": serving,
    }


def mark(manifest: Json, name: str, live: str | None, to: str | None) -> None:
    """What converge writes into the manifests."""
    if name == live:
        manifest.update(state="live", was_live=True, promoted=manifest.get("promoted") or time.time())
    elif manifest.get("state") == "live":
        manifest["state"] = "superseded"
    elif name == to and manifest.get("state") in ("staged", "candidate"):
        manifest["state"] = "abandoned"


def watch(host: FakeHost, args: Json) -> Events:
    world, state = host.world, host.world.service(args["service"])
    engine = world.engine(state.running)
    begun = time.monotonic() if args.get("attach") else state.started
    last, health = "", ""

    def at() -> float:
        return round(time.monotonic() - begun, 3)

    yield {"kind": "log", "t": at(), "lines": [line_event(at(), text) for text in engine.log]}
    for text in engine.log:
        if any(re.search(pattern, text) for pattern in args.get("fatal") or ()):
            fatal: Json = {"proof": "fatal-line", "detail": {"line": text}}
            yield {"kind": "failed", "t": at(), **fatal}
            return fatal
    while True:
        unit = unit_state(world, state)
        if unit["ActiveState"] != last:
            last = unit["ActiveState"]
            yield {
                "kind": "unit",
                "t": at(),
                "active": last,
                "sub": unit["SubState"],
                "result": unit["Result"],
                "restarts": 0,
                "invocation_id": unit["InvocationID"],
                "main_pid": unit["MainPID"],
                "exec_code": unit["ExecMainCode"],
                "exec_status": unit["ExecMainStatus"],
            }
        if last != "active" or unit["InvocationID"] != args.get("invocation_id", unit["InvocationID"]):
            proof = {"proof": "unit" if last != "active" else "restart", "detail": unit}
            yield {"kind": "failed", "t": at(), **proof}
            return proof
        now = "200" if world.ready(state) else "refused"
        if now != health or now == "200":
            health = now
            yield {"kind": "health", "t": at(), "state": now, "seconds": 0.001, "ours": now == "200"}
        yield None


def line_event(t: float, text: str) -> Json:
    return {"t": t, "text": text, "source": "engine", "piece": False}


def journal(host: FakeHost, args: Json) -> Events:
    state = host.world.service(args["service"])
    log = host.world.kernel_log if args.get("kernel") else host.world.engine(state.ran).log
    begun = _LOGGED
    events = [line_event(begun + number / 1e3, text) for number, text in enumerate(log)]
    newest = args.get("lines")
    for event in events if newest is None else events[-newest:]:
        yield {**event, "source": "kernel" if args.get("kernel") else "engine"}
    while args.get("follow"):
        yield None
    return {}


def run(host: FakeHost, args: Json) -> Events:
    lines, status = host.world.run(args)
    for line in lines:
        yield {"line": line}
    return {"status": status, "stderr": ""}


OPERATIONS: dict[str, Operation] = {
    "hello": hello,
    "observe": observe,
    "release.read": release_read,
    "listeners": listeners,
    "http": http,
    "sample": sample,
    "lease.acquire": acquire,
    "lease.renew": renew,
    "lease.release": release,
    "stage": stage,
    "release.update": release_update,
    "probe": probe,
    "transition.begin": begin,
    "transition.step": step,
    "transition.end": end,
    "unit.start": unit_start,
    "promote": promote,
    "prune": prune,
}
STREAMS: dict[str, StreamingOperation] = {
    "unit.stop": unit_stop,
    "converge": converge,
    "watch": watch,
    "journal": journal,
    "run": run,
}
