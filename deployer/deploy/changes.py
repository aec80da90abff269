"""What differs between two command lines, engines or units, each change by its name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from deployer.records.drift import Change
from deployer.records.hardware import EngineFacts
from deployer.records.release import EngineRef
from deployer.units.text import arguments, entries, joined


def differing(
    kind: str, old: Mapping[str, str], new: Mapping[str, str], names: Iterable[str], *, restart: bool = True
) -> list[Change]:
    return [
        Change(kind, name or "command", old.get(name), new.get(name), restart)
        for name in names
        if old.get(name) != new.get(name)
    ]


def argument_changes(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """Return what differs argument by argument, in the new order, then what went away."""
    old, new = arguments(before), arguments(after)
    return differing("argument", old, new, {**new, **old})


def engine_ref(facts: EngineFacts | None) -> EngineRef | None:
    """Return an engine as a release records it; None if it was not seen whole."""
    if facts is None or not facts.fingerprint:
        return None
    packages = {"sglang": facts.sglang} if facts.sglang else {}
    return EngineRef(facts.python, facts.python_version, packages | facts.packages, facts.fingerprint, facts.written)


def engine_changes(before: EngineRef, after: EngineRef) -> list[Change]:
    """Return what differs between two engines: the versions, or else ``files``. None if they are in two places."""
    if before.python != after.python:
        return []  # which the command line shows
    old = {"Python": before.python_version or "", **before.packages}
    new = {"Python": after.python_version or "", **after.packages}
    changes = differing("engine", old, new, sorted({**old, **new}))
    if not changes and before.fingerprint != after.fingerprint:
        changes.append(Change("engine", "files", before.fingerprint, after.fingerprint))
    elif not changes and before.written and after.written and before.written != after.written:
        changes.append(Change("engine", "files", before.written, after.written))
    return changes


def unit_only_changes(before: str | None, after: str, shown: Iterable[Change]) -> list[Change]:
    """Return the keys of the unit that differ and are not among the changes ``shown``; none if there was no unit.

    What names the release is left out, and the command line and the environment, which are shown piece by piece.
    """
    if before is None:
        return []
    left_out = {change.name for change in shown if change.kind == "unit"}
    left_out |= {"ExecStart", "Environment", "EnvironmentFile", "Description"}
    old, new = _by_key(before), _by_key(after)
    return differing("unit", old, new, [key for key in {**new, **old} if key not in left_out], restart=False)


def _by_key(unit: str) -> dict[str, str]:
    return joined((key, value) for section, key, value in entries(unit) if not section.startswith("X-"))
