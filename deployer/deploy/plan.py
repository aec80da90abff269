"""What would change: desired against observed, as data. Pure: no host is asked here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployer.deploy.model import Json, Trial
from deployer.records.host import ServiceState
from deployer.units.text import entries

#: Environment entries that name the release itself and so differ between equal releases.
_OWN = frozenset({"DEPLOYER_RELEASE"})


@dataclass(frozen=True)
class Change:
    """One thing that differs. ``before`` or ``after`` is None where it appears or goes."""

    kind: str
    name: str
    before: str | None
    after: str | None
    restart: bool = True

    def as_dict(self) -> Json:
        return {
            "kind": self.kind,
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "restart": self.restart,
        }

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.name} {self.after}".rstrip()
        if self.after is None:
            return f"- {self.name} {self.before}".rstrip()
        return f"~ {self.name} {self.before} -> {self.after}"


@dataclass(frozen=True)
class Plan:
    """What `apply` will do.

    ``action``: ``nothing`` (live, healthy and equal), ``converge`` (equal, but not running as it should), ``deploy``.
    ``unit_only`` are keys of the unit that differ besides and ask for no restart; ``unit_diff`` is the whole of it as
    text. ``downtime`` is in seconds, from this service's own earlier starts; None where there are none.
    """

    service: str
    profile: str
    action: str
    live: str | None
    release: str
    changes: tuple[Change, ...]
    unit_only: tuple[Change, ...]
    unit_diff: str
    interrupts: bool
    downtime: float | None
    downtime_basis: str

    @property
    def restart(self) -> bool:
        """Whether the engine is started anew."""
        return self.action != "nothing"

    def as_dict(self) -> Json:
        return {
            "service": self.service,
            "profile": self.profile,
            "action": self.action,
            "live": self.live,
            "release": self.release,
            "changes": [change.as_dict() for change in self.changes],
            "unit_diff": self.unit_diff,
            "restart": self.restart,
            "interrupts_live": self.interrupts,
            "expected_downtime_s": self.downtime,
            "downtime_basis": self.downtime_basis,
        }


def grouped_arguments(argv: Sequence[str]) -> list[tuple[str, str]]:
    """An engine's argv as (flag, value) pairs; a flag without a value has ``""``, words before the first flag none.

    A word that starts with ``--`` begins a flag. What follows up to the next one is its value, joined by blanks.
    """
    pairs: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            pairs.append((flag, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            pairs.append(("", [word]))
    return [(flag, " ".join(words)) for flag, words in pairs]


def argument_changes(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """Argument by argument, in the new order, then what went away."""
    old, new = _by_flag(before), _by_flag(after)
    changes = [
        Change("argument", flag or "command", old.get(flag), value)
        for flag, value in new.items()
        if old.get(flag) != value
    ]
    changes += [
        Change("argument", flag or "command", value, None) for flag, value in old.items() if flag not in new
    ]
    return changes


def _by_flag(argv: Sequence[str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for flag, value in grouped_arguments(argv):
        result[flag] = f"{result[flag]} | {value}" if flag in result else value
    return result


def mapping_changes(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """Key by key, sorted."""
    keys = sorted((set(before) | set(after)) - _OWN)
    return [
        Change(kind, key, before.get(key), after.get(key))
        for key in keys
        if before.get(key) != after.get(key)
    ]


def trial_changes(live: Json | None, trial: Trial, comparable: Any) -> list[Change]:
    """What differs between the live release's manifest and the trial in ways that need a restart.

    ``comparable`` takes an argv and removes what names the release in it, so that equal releases compare equal.
    """
    if live is None:
        return argument_changes([], comparable(trial.argv)) + mapping_changes(
            "environment", {}, trial.environment
        )
    changes = argument_changes(comparable(live.get("argv") or []), comparable(trial.argv))
    changes += mapping_changes("environment", live.get("environment") or {}, trial.environment)
    changes += mapping_changes("unit", live.get("restart_keys") or {}, trial.restart_keys)
    if live.get("sglang") != trial.sglang:
        changes.append(Change("engine", "sglang", live.get("sglang"), trial.sglang))
    before, after = (live.get("model") or {}), trial.model
    for key in ("path", "fingerprint"):
        if before.get(key) != after.get(key):
            changes.append(Change("model", key, before.get(key), after.get(key)))
    return changes


def unit_only_changes(before: str | None, after: str, told: Iterable[Change]) -> list[Change]:
    """Keys of the unit that differ and are not among the changes ``told``; none where there was no unit before.

    What names the release is left out, and the command line and the environment, which are told piece by piece.
    """
    if before is None:
        return []
    known = {change.name for change in told if change.kind == "unit"}
    known |= {"ExecStart", "Environment", "EnvironmentFile", "Description"}
    old, new = _by_key(before), _by_key(after)
    return [
        Change("unit", key, old.get(key), new.get(key), restart=False)
        for key in dict.fromkeys([*new, *old])
        if key not in known and old.get(key) != new.get(key)
    ]


def _by_key(unit: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for section, key, value in entries(unit):
        if not section.startswith("X-"):
            found[key] = f"{found[key]} | {value}" if key in found else value
    return found


def unit_diff(before: str | None, after: str, *, before_name: str, after_name: str) -> str:
    """A unified diff of two unit texts; empty when they are the same but for the release's own name."""
    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        after.splitlines(keepends=True),
        before_name,
        after_name,
        n=2,
    )
    return "".join(lines)


def expected_downtime(
    manifests: Iterable[Json], profile: str, stop_seconds: float = 5.0
) -> tuple[float | None, str]:
    """Seconds from stopping the old server to the candidate being ready, from the timelines of earlier releases."""
    known = [
        (str(item["profile"]), total)
        for item in manifests
        if (total := sum(float(phase.get("seconds") or 0.0) for phase in item.get("timeline") or ())) > 0
        and item.get("was_live")
    ]
    same = [seconds for name, seconds in known if name == profile]
    if same:
        return same[-1] + stop_seconds, f"the last start of {profile}"
    if known:
        return known[-1][1] + stop_seconds, f"the last start of this service ({known[-1][0]})"
    return None, "no earlier start of this service is on record"


def make_plan(state: ServiceState, trial: Trial, *, healthy: bool, comparable: Any) -> Plan:
    """Decide what an apply has to do. ``healthy``: the live server answers /health with 200 from its own unit."""
    live_name = state.live.release if state.live else None
    manifest = state.manifest(live_name)
    changes = trial_changes(manifest, trial, comparable)
    running = state.running.release if state.running else None
    if changes or manifest is None:
        action = "deploy"
    elif healthy and running == live_name and state.unit.ok:
        action = "nothing"
    else:
        action = "converge"
    downtime, basis = expected_downtime(state.releases, trial.profile)
    diff, only = "", []
    if action == "deploy":
        only = unit_only_changes(state.live.text if state.live else None, trial.unit, changes)
        diff = unit_diff(
            state.live.text if state.live else None,
            trial.unit,
            before_name=f"live ({live_name})" if live_name else "nothing",
            after_name=f"candidate ({trial.release})",
        )
    return Plan(
        service=trial.service,
        profile=trial.profile,
        action=action,
        live=live_name,
        release=trial.release if action == "deploy" else (live_name or trial.release),
        changes=tuple(changes),
        unit_only=tuple(only),
        unit_diff=diff,
        interrupts=action != "nothing" and not state.at_rest,
        downtime=downtime,
        downtime_basis=basis,
    )


def rollback_target(state: ServiceState, to: int | None) -> tuple[Json | None, str]:
    """The release to go back to, or None and the reason why there is none.

    Without ``to`` it is the release that the live one replaced (and, where that is gone, the next older one in the
    chain), so that going back twice goes back further and never to and fro.
    """
    live_name = state.live.release if state.live else None
    proven = {item["release"]: item for item in state.releases if item.get("was_live")}
    if to is not None:
        wanted = next((item for item in state.releases if item.get("number") == to), None)
        offers = ", ".join(f"{item['number']} ({item['profile']})" for item in proven.values()) or "none"
        if wanted is None:
            return None, f"there is no release {to}; releases that were live: {offers}"
        if not wanted.get("was_live"):
            return (
                None,
                f"release {to} ({wanted['profile']}) was never live; releases that were live: {offers}",
            )
        if wanted["release"] == live_name:
            return None, f"release {to} ({wanted['profile']}) is live already"
        return wanted, ""
    if live_name is None:
        return None, "nothing is live on this service, so there is nothing to go back from"
    seen = {live_name}
    name = (state.manifest(live_name) or {}).get("previous")
    while name is not None and name not in seen:
        if name in proven:
            return proven[name], ""
        seen.add(name)
        name = (state.manifest(name) or {}).get("previous")
    return (
        None,
        f"{live_name} is the first release that went live here; there is nothing before it to go back to",
    )


def lost_live(state: ServiceState) -> str | None:
    """The release that runs and was live, where its unit file was deleted; None where all is well."""
    if state.live is not None or state.running is None:
        return None
    manifest = state.manifest(state.running.release) or {}
    return state.running.release if manifest.get("was_live") else None


def endpoint(argv: Sequence[str], default: tuple[str, int]) -> tuple[str, int]:
    """Address and port a server listens on by its own arguments; the inventory's may have changed since."""
    flags = _by_flag(argv)
    port = flags.get("--port", "")
    return flags.get("--host") or default[0], int(port) if port.isdigit() else default[1]


def served_model_name(argv: Sequence[str]) -> str | None:
    """The name under which a server's own arguments serve its model, else its path; None where they have neither."""
    flags = _by_flag(argv)
    return flags.get("--served-model-name") or flags.get("--model-path")
