"""Small builders for the data that the deployment logic works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from deployer.records.codec import Json, encode
from deployer.records.hardware import EngineFacts, Gpu, ModelFacts
from deployer.records.host import HostState, ServiceState, UnitState
from deployer.records.release import Release, Requested

GIB = 1024**3


def release(number: int = 1, profile: str = "tp8", **changes: Any) -> Release:
    """A staged release of a small profile. ``requested``: its arguments; the other ``changes`` are keys of its JSON."""
    fields: dict[str, Any] = {
        "service": "kimi",
        "release": f"{number:04d}-{profile}",
        "number": number,
        "profile": profile,
        "created": 1.0,
        "operator": "a@b",
        "argv": ("/opt/sglang/bin/python", "-m", "sglang.launch_server"),
        "restart_keys": {"KillMode": "mixed"},
        "sglang": "0.5.12.post1",
        "model": {"path": "/m", "fingerprint": "abc"},
    }
    unit = changes.pop("unit", "[Service]\nRestart=on-failure\n")
    requested = Requested(arguments=changes.pop("requested", {"tp_size": 8})).as_json()
    staged = Release.from_json({**fields, "resolved": requested, **changes})
    return replace(staged, unit=unit, candidate=unit.replace("on-failure", "no"))


def service_state(
    *,
    live: Release | None = None,
    live_name: str | None = None,
    running: str | None = None,
    releases: Iterable[Release] | None = None,
    raw: Json | None = None,
    **changes: Any,
) -> ServiceState:
    """What a host knows about the service; with ``live`` that release is live. ``raw`` replaces parts of the answer."""
    if live is not None:
        live_name = live.release
        releases = [replace(live, was_live=True, state="live")]
    data: Json = {
        "live": {"release": live_name, "text": live.unit if live else "", "path": "/u"} if live_name else None,
        "unit": {
            "ActiveState": "active" if running else "inactive",
            "SubState": "running" if running else "dead",
        },
        "running": {"pid": 7, "release": running, "argv": [], "started": 1.0, "pids": [7, 8]} if running else None,
        "releases": encode(list(releases or ())),
        "enabled": True,
        "recover_enabled": True,
        "assess_enabled": True,
    }
    return ServiceState.from_json(data | changes | (raw or {}))


def gpus(count: int, used: int = 0) -> tuple[Gpu, ...]:
    """GPUs of 96 GiB."""
    return tuple(Gpu(index, f"u{index}", "RTX", 96 * GIB, used, 0.0, 60.0, 600.0) for index in range(count))


def host_state(state: ServiceState, *, gpu_count: int = 8, **changes: Any) -> HostState:
    """A host that is fit for the service, but for ``changes``."""
    fields: dict[str, Any] = {
        "boot_id": "b",
        "lease": None,
        "services": {"kimi": state},
        "gpus": gpus(gpu_count),
        "gpu_processes": (),
        "disk_free": 10 * GIB,
        "engine": EngineFacts("/opt/sglang/bin/python", True, "0.5.12.post1", "0.28.1"),
        "model": ModelFacts("/m", True, 10, 3, "abc", {"model_type": "kimi"}),
    }
    return HostState(**(fields | changes))


def unit_state(**changes: Any) -> UnitState:
    """A unit that runs."""
    return UnitState.from_json({"ActiveState": "active", "SubState": "running"} | changes)


def words(values: Sequence[Any]) -> list[str]:
    """Anything as text."""
    return [str(value) for value in values]
