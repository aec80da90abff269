"""A healthy pipeline under load, as the doctor sees it, and ways to make it worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deployer.config.profile import Profile
from deployer.deploy.session import Health
from deployer.deploy.verify import Verification
from deployer.inspect.doctor.evidence import Evidence, Load
from deployer.records.effect import ArgumentInEffect, Computed, InEffect
from deployer.records.events import LogLine
from deployer.records.hardware import GpuProcess
from deployer.records.host import HostState, Lease, ServiceState
from deployer.records.release import Release
from deployer.records.samples import Sampled
from tests.unit.deploy.builders import host_state, release, service_state

NOW = 10_000.0
GIB = 1024**3
PIDS = (7, 8)
RELEASE = "0002-pp8-async"
EFFECTIVE = {"tp_size": 1, "pp_size": 8, "pp_async_batch_depth": 8, "decode_log_interval": 41}
REQUESTED = {
    "pp_size": 8,
    "pp_async_batch_depth": 8,
    "pp_max_micro_batch_size": 8,
    "max_running_requests": 64,
}
COMPUTED = Computed(
    slots=16,
    micro_batch_cap=8,
    kv_tokens=100_000,
    max_running=64,
    graph_sizes=(1, 2, 4, 8),
    context_length=4096,
    attention_backend="triton",
    weights_gib=60.0,
    kv_gib=20.0,
    graphs_gib=0.1,
    free_gib=5.0,
)


def releases() -> list[Release]:
    """The running release and its twin with a larger cap, both measured, and one of another kind."""
    bench = {"single_stream_tok_s": 34.0, "levels": {"8": 112.0, "32": 248.0}}
    wider = {**REQUESTED, "pp_max_micro_batch_size": 64, "cuda_graph_max_bs": 64}
    return [
        release(1, "tp8", bench_summary=bench),
        release(
            2,
            "pp8-async",
            resolved={"requested": REQUESTED},
            bench_summary=bench,
            state="live",
            was_live=True,
        ),
        release(
            3,
            "pp8-async-mb64",
            resolved={"requested": wider},
            bench_summary={"single_stream_tok_s": 36.0, "levels": {"32": 251.0}},
            state="superseded",
            was_live=True,
        ),
    ]


def service(**raw: Any) -> ServiceState:
    """The service's state; ``raw`` replaces parts of it."""
    argv = ["python", "-m", "sglang.launch_server", "--pp-size", "8"]
    running = {"pid": 7, "release": RELEASE, "argv": argv, "started": NOW - 3600, "pids": list(PIDS)}
    return service_state(live_name=RELEASE, running=RELEASE, releases=releases(), raw={"running": running, **raw})


def running(state: ServiceState, **changes: Any) -> ServiceState:
    """The state with another main process."""
    assert state.running is not None
    return replace(state, running=replace(state.running, **changes))


def decode(
    size: int,
    tokens: int,
    *,
    t: float = NOW - 10,
    graph: bool = True,
    queued: int = 0,
    usage: float = 0.2,
    pp: int = 0,
) -> LogLine:
    text = (
        f"[2026-11-29 17:46:24 PP{pp}] Decode batch, #running-req: {size}, #token: {tokens}, token usage: {usage:.2f}, "
        f"cuda graph: {graph}, gen throughput (token/s): 250.00, #queue-req: {queued}"
    )
    return LogLine(text, t)


def prefill(cached: int = 500, new: int = 100, t: float = NOW - 200) -> LogLine:
    text = (
        f"[2026-11-29 17:46:20 PP0] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, "
        "token usage: 0.10, #running-req: 3, #queue-req: 0, cuda graph: False, input throughput (token/s): 900.00"
    )
    return LogLine(text, t)


READY = LogLine("[2026-11-29 16:46:24] The server is fired up and ready to roll!", NOW - 3500)


def lines(*more: LogLine, sizes: tuple[int, ...] = (7, 6, 7, 5), **changes: Any) -> tuple[LogLine, ...]:
    """A quiet log: a start, prompts, decode lines of these sizes."""
    steps = tuple(decode(size, 1000 + 41 * 6 * number, **changes) for number, size in enumerate(sizes))
    return (READY, prefill(), prefill(), *steps, *more)


def sampled(**changes: Any) -> Sampled:
    """Six looks: eight GPUs at 80 %, 32 connections, a machine at rest. ``gpu`` changes GPU 3."""
    gpu: dict[str, Any] = {
        "utilization": 80.0,
        "power_w": 400.0,
        "power_limit_w": 600.0,
        "memory_used": 80 * GIB,
        "memory_total": 96 * GIB,
        "temperature_c": 60.0,
        "clock_mhz": 2400.0,
        "clock_max_mhz": 3090.0,
        "throttle": 0,
    }
    every, third = changes.pop("every", {}), changes.pop("third", {})
    machine = {
        "memory_total": 512 * GIB,
        "memory_available": 400 * GIB,
        "swap_total": 8 * GIB,
        "swap_free": 8 * GIB,
        "load": [10.0, 9.0, 8.0],
        "cpus": 64,
        "disks": {"/": {"free": 200 * GIB, "total": 900 * GIB}},
        "pages_swapped": 0,
        **changes.pop("machine", {}),
    }
    gpus = [{"index": index, **gpu, **every, **(third if index == 3 else {})} for index in range(8)]
    look = {"t": 0.0, "gpus": gpus, "connections": 32}
    return Sampled.from_json({"now": NOW, "samples": [look] * 6, "machine": machine, "problem": None, **changes})


def profile(name: str, **tables: Any) -> Profile:
    return Profile.model_validate({"name": name, **tables})


PROFILES = (
    profile("pp8", parallelism={"pp": 8}, cuda_graph={"enabled": False}),
    profile(
        "pp8-async", parallelism={"pp": 8}, pipeline={"async_batch_depth": 8, "max_micro_batch_size": 8},
        cuda_graph={"max_batch_size": 8},
    ),
    profile(
        "pp8-async-mb64", parallelism={"pp": 8}, pipeline={"async_batch_depth": 8, "max_micro_batch_size": 64},
    ),
    profile("tp2", parallelism={"tp": 2}),
)  # fmt: skip


def loads(*counts: tuple[int, int], usage: float = 0.2) -> tuple[Load, ...]:
    """Answers of /v1/loads: running and waiting."""
    return tuple(Load(running, waiting, usage) for running, waiting in counts)


def holders(*others: GpuProcess) -> HostState:
    """The host with the service's processes on eight GPUs, and others."""
    own = tuple(GpuProcess(index, 7, 80 * GIB, "python", None, "sglang-kimi.service") for index in range(8))
    return host_state(service(), gpu_processes=(*own, *others))


def lease(**changes: Any) -> Lease:
    """The lease of somebody who applies a profile, held for 40 s."""
    owner = {"user": "ann", "host": "desk", "pid": 5, "command": "apply tp8"}
    data = {
        "generation": 4,
        "owner": owner,
        "service": "kimi",
        "acquired": NOW - 40,
        "valid": True,
        "state": "held",
    }
    return Lease.from_json(data | changes)


def evidence(**changes: Any) -> Evidence:
    """A healthy service under load; any part can be changed."""
    effect: dict[str, Any] = {
        "effective": EFFECTIVE,
        "computed": COMPUTED,
        "checks": (ArgumentInEffect("pp_size", 8, 8, "equal"),),
        "allowed": frozenset(),
    }
    effect = {name: changes.pop(name, value) for name, value in effect.items()}
    checks = effect.pop("checks")
    effect["in_effect"] = InEffect(
        computed=effect.pop("computed"),
        changed=tuple(check for check in checks if check.verdict == "changed"),
        equal=sum(check.verdict == "equal" for check in checks),
        arguments=checks,
    )
    fields: dict[str, Any] = {
        "service": "kimi",
        "host": "box",
        "state": service(),
        "observed": holders(),
        "health": Health(True, "200", 1.1),
        "now": NOW,
        "verification": Verification((), **effect),
        "loads": loads((7, 0), (0, 0), (6, 0)),
        "metrics": {"num_retracted_reqs": 0.0},
        "lines": lines(),
        "sampled": sampled(),
        "profiles": PROFILES,
    }
    return Evidence(**(fields | changes))
