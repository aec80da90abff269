"""Plans that are kept in a file and applied later: what they depend on, and whether that is still so."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from deployer.errors import ConfigError, PlanMoved
from deployer.records.codec import BadRecord, Json
from deployer.records.host import HostState
from deployer.records.outcome import Plan, SavedPlan
from deployer.records.release import Release
from deployer.text import moment
from deployer.units.text import comparable


def basis(plan: Plan, candidate: Release, observed: HostState) -> dict[str, str]:
    """Return what a plan depends on, by the name that a refusal gives it. Long values are digests."""
    state = observed.services[plan.service]
    engine, model = observed.engine, observed.model
    return {
        "the host's boot": observed.boot_id,
        "the live release": state.live_name or "nothing",
        "the live unit file": _digest(state.live.text if state.live else None),
        "its drop-ins": _digest([*state.shadows, *state.unit.drop_ins]),
        "what runs": state.running_name or "nothing",
        "its old processes": " ".join(str(item.pid) for item in state.strays) or "none",
        "the newest release": str(max((item.number for item in state.releases), default=0)),
        "how the host differs from it": _digest([item.text for item in plan.differences]),
        "what is to be done": plan.action,
        "what has to make room": ", ".join(plan.displaces) or "nothing",
        "the command line": _digest(comparable(candidate.argv)),
        "the environment": _digest(candidate.variables),
        "the unit": _digest(candidate.restart_keys),
        "the benchmark and its gate": _digest(candidate.requested.as_json()),
        "SGLang": (engine.sglang if engine else None) or "none",
        "SGLang's files": (engine.written or engine.fingerprint if engine else None) or "none",
        "the model's files": (model.fingerprint if model else None) or "none",
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()


def refuse_moved(saved: SavedPlan, now: SavedPlan) -> None:
    """Raise PlanMoved if anything that the saved plan depends on has changed."""
    names = [name for name in {**now.basis, **saved.basis} if now.basis.get(name) != saved.basis.get(name)]
    if saved.host != now.host:
        names.insert(0, "the host")
    if saved.plan.service != now.plan.service:
        names.insert(0, "the service")
    if names:
        raise PlanMoved(
            f"the plan of {moment(saved.created)} does not hold any more; changed since: {', '.join(names)}",
            remedy=f"look at the new plan: deployer plan {now.plan.profile} --out FILE",
            detail={"moved": names},
        )


def write_plan(path: Path, saved: SavedPlan) -> None:
    """Keep a plan in a file. Raise ConfigError if it cannot be written."""
    try:
        path.write_text(json.dumps(saved.as_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: the plan cannot be written: {error.strerror}") from error


def read_plan(path: Path) -> SavedPlan:
    """Return the plan that a file keeps. Raise ConfigError if there is none."""
    try:
        document: Json = json.loads(path.read_text(encoding="utf-8"))
        return SavedPlan.from_json(document)
    except OSError as error:
        raise ConfigError(f"{path}: the plan cannot be read: {error.strerror}") from error
    except (ValueError, BadRecord) as error:
        raise ConfigError(
            f"{path} is not a valid plan: {error}", remedy="write a new one: deployer plan PROFILE --out FILE"
        ) from error
