"""How a host differs from its live release: the one comparison of what runs and what is on disk. Pure.

`plan`, `apply`, `rollback`, `converge`, `status` and `doctor` all go by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from deployer.deploy.changes import argument_changes, engine_changes, engine_ref, unit_only_changes
from deployer.reach import unit_name
from deployer.records.answers import DropIn
from deployer.records.drift import Change, Difference
from deployer.records.host import HostState, Running, ServiceState
from deployer.records.release import Release
from deployer.units.text import comparable, restart_keys, section

#: Keys that a drop-in may not take out of deployer's hands: what runs, as whom, and when it is started again.
DECISIVE = frozenset({"ExecStart", "Type", "User", "Restart"})
_OF_ENVIRONMENT = frozenset({"Environment", "EnvironmentFile", "PassEnvironment", "UnsetEnvironment"})
_MODE = 0o644
#: Names shown of a longer list.
_SHOWN = 3


def differences(service: str, observed: HostState) -> tuple[Difference, ...]:
    """Return how the host differs from the live release of ``service``; nothing of it is decided by memory.

    The engine and the model are compared if they were observed.
    """
    state = observed.services[service]
    return tuple(
        chain(
            _shadows(service, state),
            _folder(state),
            _unit_file(state),
            *(() if state.transition else (_candidate(state), _process(service, state), _systemd(service, state))),
            proof_differences(state.live_release, observed),
        )
    )


def decisive(drop_ins: Iterable[DropIn]) -> list[tuple[str, list[str]]]:
    """Return the drop-ins that set what deployer decides, with those keys."""
    found = ((item.path, sorted(DECISIVE.intersection(item.keys))) for item in drop_ins)
    return [(path, keys) for path, keys in found if keys]


def _shadows(service: str, state: ServiceState) -> Iterator[Difference]:
    revert = f"`systemctl revert {unit_name(service)}` on the host undoes it"
    for path in state.shadows:
        if not path.endswith(".conf"):
            yield Difference("unit", f"{path} replaces the unit", remedy=revert)
    for item in state.drop_ins:
        keys = f" ({_some(item.keys)})" if item.keys else ""
        yield Difference("drop-in", f"{item.path} changes the unit{keys}", remedy=revert)


def _folder(state: ServiceState) -> Iterator[Difference]:
    if state.live_name and state.live_release is None:
        text = f"the folder of the live release {state.live_name} is gone"
        yield Difference("release", text, remedy="apply makes a new one")
    if lost := state.lost_live:
        yield Difference(
            "unit",
            f"the unit file of {lost.release} is gone although it was live",
            remedy=f"`deployer rollback --to {lost.number}` restores it",
        )


def _unit_file(state: ServiceState) -> Iterator[Difference]:
    live = state.live
    if live is None:
        return
    if live.kept is not None and live.text != live.kept:
        started = state.running.started if state.running else 0.0
        runs = live.modified is not None and started > live.modified
        restart = runs and restart_keys(live.text) != restart_keys(live.kept)
        edits = _unit_changes(live.kept, live.text)
        text = f"{live.path} was edited by hand: {_some(edits) or 'comments only'}"
        yield Difference("unit", text, converges=True, restart=restart)
    if live.mode is not None and live.mode != _MODE:
        yield Difference("unit", f"{live.path} has mode {live.mode:04o} instead of {_MODE:04o}", converges=True)


def _unit_changes(kept: str, text: str) -> list[str]:
    """Return what was edited in a unit, its command line argument by argument."""
    before, after = (section(it, "Service").get("ExecStart", "") for it in (kept, text))
    words = ([word.strip("\"'") for word in line.replace("\\", " ").split()] for line in (before, after))
    edits = [_instead(change) for change in argument_changes(*words)]
    variables = (section(it, "Service").get("Environment", "") for it in (kept, text))
    edits += ["Environment"] if len({*variables}) > 1 else []
    return edits + [_instead(change) for change in unit_only_changes(kept, text, ())]


def _candidate(state: ServiceState) -> Iterator[Difference]:
    if state.candidate is not None:
        text = f"a candidate unit is left at {state.candidate.path} although nobody is changing the service"
        yield Difference("unit", text, converges=True)


def _process(service: str, state: ServiceState) -> Iterator[Difference]:
    live, running = state.live_name, state.running
    if live is None:
        return
    if running is None:
        how = ", ".join(word for word in (state.unit.active, state.unit.result) if word)
        yield Difference("process", f"the live service is not running ({how})", converges=True)
    elif running.release != live:
        text = f"{running.release or 'an unknown release'} is running while {live} is live"
        yield Difference("process", text, converges=True, restart=True)
    elif release := state.live_release:
        set_by_others = {key for item in state.drop_ins for key in item.keys}
        for kind, keys, texts in (
            ("argument", {"ExecStart"}, _argv(release, running)),
            ("environment", _OF_ENVIRONMENT, _environment(release, running)),
        ):
            ours = not keys & set_by_others
            remedy = "" if ours else f"a drop-in sets it; `systemctl revert {unit_name(service)}` undoes that"
            for text in texts:
                yield Difference(kind, text, converges=ours, restart=ours, remedy=remedy)
        yield from _others(service, state, release, running, not set_by_others & _OF_ENVIRONMENT)


def _argv(release: Release, running: Running) -> Iterator[str]:
    # The kernel puts an interpreter or a wrapper in front, and a program may set a title in the place of its argv.
    words, expected = comparable(running.argv), comparable(release.argv)
    if not any(words[1:]) or not expected or words[len(words) - len(expected) + 1 :] == expected[1:]:
        return
    changes = argument_changes(expected, words)
    others = [change for change in changes if change.name != "command"] or changes
    yield from (f"running argv: {_instead(change)}" for change in others)
    if not others:
        yield "running argv: the same arguments in another order"


def _environment(release: Release, running: Running) -> Iterator[str]:
    if running.environment is None:
        return
    for name, value in release.variables.items():
        if (actual := running.environment.get(name)) != value:
            yield f"running environment: {_instead(Change('', name, value, actual))}"
    for name in running.secrets:
        yield f"running environment: {name} is not the secret that {release.release} was given"


def _others(
    service: str, state: ServiceState, release: Release, running: Running, undone: bool
) -> Iterator[Difference]:
    """Variables that nobody should have set. ``undone``: no drop-in sets any."""
    live = state.live
    # Started from the unit as it is now, it would be given them again.
    again = live is not None and live.text == live.kept and running.started > (live.modified or 0.0)
    if not undone:
        remedy = f"a drop-in sets it; `systemctl revert {unit_name(service)}` undoes that"
    else:
        remedy = "a restart would not remove it: see where it comes from" if again else ""
    for name in running.others:
        text = f"running environment: {name} is set, and {release.release} does not set it"
        ours = undone and not again
        yield Difference("environment", text, converges=ours, restart=ours, remedy=remedy)


def _systemd(service: str, state: ServiceState) -> Iterator[Difference]:
    if state.live_name and not state.enabled:
        text = f"{unit_name(service)} is not enabled: it will not start at boot"
        yield Difference("enablement", text, converges=True)
    if state.live_name and not state.recover_enabled:
        text = f"deployer-recover@{service}.service is not enabled: no change that a power cut ends is undone at boot"
        yield Difference("enablement", text, converges=True)
    if state.live_name and not state.assess_enabled:
        text = f"deployer-assess@{service}.service is not enabled: nobody looks after a boot whether it comes up"
        yield Difference("enablement", text, converges=True)
    if state.unit.needs_reload:
        text = "the unit files changed since systemd last read them (daemon-reload)"
        yield Difference("unit", text, converges=True)


def proof_differences(release: Release | None, observed: HostState) -> Iterator[Difference]:
    """Yield what is not as it was when the release was proven: the engine, the model."""
    if release is None:
        return
    since, anew = f"since {release.release} was proven", "the next apply proves it anew"
    engine = engine_ref(observed.engine)
    for change in engine_changes(release.engine, engine) if release.engine and engine else ():
        text = f"engine: {_instead(change)} {since}"
        if change.name == "files" and observed.engine:
            count, names = observed.engine.changed_files, observed.engine.changed
            text = f"engine files: {f'{count} ' if count else ''}changed {since}"
            text += f" ({_some(names, count)})" if names else ""
        yield Difference("engine", text, remedy=anew)
    model, known = observed.model, release.model
    if model and known.fingerprint and model.path == known.path and model.fingerprint != known.fingerprint:
        yield Difference("model", f"model files: changed {since} ({model.path})", remedy=anew)


def _instead(change: Change) -> str:
    """A change from what should be to what is."""
    if change.before is None:
        return f"{change.name} {change.after}".rstrip() + " is new"
    if change.after is None:
        return f"{change.name} {change.before}".rstrip() + " is missing"
    return f"{change.name} {change.after} instead of {change.before}"


def _some(texts: Sequence[str], count: int | None = None) -> str:
    more = (count or len(texts)) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
