"""Operations of a transition: begin, step, end; switch to the candidate; promote it. And the units that outlive us."""

from __future__ import annotations

import os
import sys
import time
from typing import Optional

from . import source
from .base import (
    BOOT_ID,
    LIVE_DIR,
    RUN_DIR,
    STATE_DIR,
    TRANSITION,
    Call,
    Fail,
    Json,
    boottime,
    candidate_path,
    checked,
    fsync_dir,
    live_path,
    make_reserve,
    read_json,
    read_text,
    remove_file,
    set_aside,
    systemctl,
    transition_path,
    unit_file,
    unit_name,
    unit_release,
    write_file,
    write_json,
)
from .lease import Session
from .reading import enable_link, running_of, shadows
from .registry import operation, own_hash
from .releases import make_service_dir
from .systemd import is_down, is_up, journal_cursor, unit_state

GUARD_DONE = 77  # the guard's "nothing left to guard": systemd must not restart it then
EXEC_WAIT = 5.0  # from `systemctl start` until the engine's program runs in place of systemd's own
START_WAIT = 20.0  # from `systemctl start` until systemd has begun: a new invocation

GUARD_UNIT = """\
[Unit]
Description=deployer: guard of service %i, finishes a deployment that nobody holds any more
IgnoreOnIsolate=yes
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
TimeoutStartSec=30
ExecStart={command} guard %i
{environment}Restart=always
RestartSec=1
RestartPreventExitStatus={done}
SuccessExitStatus={done}
OOMScoreAdjust=-900
"""

RECOVER_UNIT = """\
[Unit]
Description=deployer: tidy a deployment of service %i that a power failure cut short
Before=sglang-%i.service
ConditionPathExists={state}/%i/transition.json

[Service]
Type=oneshot
ExecStart=-{command} recover %i
{environment}TimeoutStartSec=20

[Install]
WantedBy=multi-user.target
"""


def guard_unit(service: str) -> str:
    return f"deployer-guard@{checked(service, 'service')}.service"


def recover_unit(service: str) -> str:
    return f"deployer-recover@{checked(service, 'service')}.service"


def quoted(word: str) -> str:
    for special, escape in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(special, escape)
    return f'"{word}"'


def write_changed(path: str, text: str) -> bool:
    if read_text(path) == text and not os.path.islink(path):
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file(path, text)
    return True


def write_link(path: str, target: str) -> bool:
    """A symbolic link that points exactly there."""
    if os.path.islink(path) and os.readlink(path) == target:
        return False
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.tmp")
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.rename(temporary, path)
    fsync_dir(folder)
    return True


def install(service: str) -> bool:
    """Put the agent's file and the units that run it in place, under the lock. True: something changed."""
    os.makedirs(STATE_DIR, mode=0o755, exist_ok=True)
    name = f"agent-{own_hash()}.py"
    path = os.path.join(STATE_DIR, name)
    write_changed(
        path, source().decode("utf-8")
    )  # the name alone proves nothing: a power cut may have emptied it
    command = f"{quoted(os.path.realpath(sys.executable))} {quoted(path)}"
    overrides = sorted(key for key in os.environ if key.startswith("DEPLOYER_") and key.endswith("_DIR"))
    environment = "".join(f"Environment={quoted(key + '=' + os.environ[key])}\n" for key in overrides)
    values = {"command": command, "environment": environment, "state": STATE_DIR, "done": GUARD_DONE}
    recover = os.path.join(LIVE_DIR, "deployer-recover@.service")
    changed = write_changed(os.path.join(RUN_DIR, "deployer-guard@.service"), GUARD_UNIT.format(**values))
    changed |= write_changed(recover, RECOVER_UNIT.format(**values))
    changed |= write_link(enable_link(recover_unit(service)), recover)
    if changed:
        systemctl("daemon-reload")
        for other in os.listdir(STATE_DIR):
            if other.startswith("agent-") and other.endswith(".py") and other != name:
                remove_file(os.path.join(STATE_DIR, other))
    return changed


def transition_of(service: str) -> Json:
    transition = read_json(transition_path(service), TRANSITION)
    if transition is None:
        raise Fail("no-transition", f"no transition of {service} is under way")
    return transition


def patch_transition(service: str, patch: Json) -> Json:
    transition = dict(transition_of(service), **patch, updated=time.time())
    write_json(transition_path(service), transition)
    return transition


@operation("transition.begin", audited=True)
def begin(session: Session, args: Json, call: Call) -> Json:
    service, wanted = args["service"], args["transition"]
    path = transition_path(service)
    with session.holding():
        make_service_dir(service)
        set_aside(path, TRANSITION)
        earlier = read_json(path, TRANSITION)
        make_reserve()
        if earlier and earlier["to"] != wanted["to"]:
            raise Fail(
                "exists", f"a transition of {service} to {earlier['to']} is under way", transition=earlier
            )
        state = unit_state(unit_name(service))
        transition = {
            "was_active": state["ActiveState"] == "active",
            "was_enabled": os.path.lexists(enable_link(unit_name(service))),
            "started": time.time(),
        }
        transition.update(earlier or {})
        transition.update(wanted, boot_id=BOOT_ID, updated=time.time())
        install(service)
        write_json(path, transition)
        systemctl("reset-failed", guard_unit(service), check=False)
        started = systemctl("start", guard_unit(service), check=False)
        if started.returncode:
            if not earlier:
                remove_file(path)
                systemctl("stop", "--no-block", guard_unit(service), check=False)
            raise Fail(
                "guard", f"the guard does not start: {started.stderr.strip()}", unit=guard_unit(service)
            )
    return {"transition": transition}


@operation("transition.step", audited=True)
def step(session: Session, args: Json, call: Call) -> Json:
    with session.holding():
        return {
            "transition": patch_transition(args["service"], dict(args.get("patch") or {}, step=args["step"]))
        }


def end_transition(service: str, stop_guard: bool = True) -> None:
    """Remove the record, then the guard; under the lock."""
    remove_file(transition_path(service))
    if stop_guard:
        systemctl("stop", "--no-block", guard_unit(service), check=False)


@operation("transition.end", audited=True)
def end(session: Session, args: Json, call: Call) -> Json:
    with session.holding():
        end_transition(args["service"])
    return {}


def begin_start(service: str, path: str) -> Json:
    """Under the lock: reload, see that the unit in force is the file at ``path``, and ask systemd to start it."""
    unit = unit_name(service)
    systemctl("daemon-reload")
    before = unit_state(unit)
    if before["FragmentPath"] != path:
        raise Fail(
            "shadowed",
            f"{unit} is read from {before['FragmentPath'] or 'nowhere'}, not from {path}",
            fragment=before["FragmentPath"],
            shadows=shadows(service, before),
        )
    systemctl("reset-failed", unit, check=False)
    cursor, asked = journal_cursor(), boottime()
    systemctl("start", "--no-block", unit)
    return {"before": before["InvocationID"], "cursor": cursor, "started_boottime": asked}


def await_invocation(call: Call, service: str, begun: Json) -> str:
    """The new start's invocation id, as soon as systemd has begun it."""
    deadline = boottime() + START_WAIT
    while True:
        state = unit_state(unit_name(service))
        begun_anew = state["InvocationID"] and state["InvocationID"] != begun["before"]
        # Until execve() is done, which Type=exec tells, the process does not show whose release it is.
        executed = state["ActiveState"] != "activating" or boottime() > begun["started_boottime"] + EXEC_WAIT
        if begun_anew and executed:
            return str(state["InvocationID"])
        if boottime() > deadline:
            raise Fail("not-started", f"systemd did not begin to start {unit_name(service)}", unit=state)
        call.sleep(0.05)


@operation("unit.start", audited=True)
def unit_start(session: Session, args: Json, call: Call) -> Json:
    service, release = args["service"], args["release"]
    path, unit = candidate_path(service), unit_name(service)
    if unit_release(args["text"]) != release:
        raise Fail("bad-request", f"the candidate's [X-Deployer] Release= is not {release}")
    with session.holding():
        if transition_of(service)["to"] != release:
            raise Fail("moved", f"the transition under way is not to {release}")
        state = unit_state(unit)
        if not is_down(state):
            raise Fail("moved", f"{unit} is {state['ActiveState']}: it must be stopped first", unit=state)
        if os.path.islink(path):
            raise Fail("shadowed", f"{path} is a link (a mask?)", shadows=[path])
        os.makedirs(RUN_DIR, exist_ok=True)
        write_file(path, args["text"])
        try:
            begun = begin_start(service, path)
        except Fail:
            remove_file(path)
            systemctl("daemon-reload", check=False)
            raise
        patch_transition(service, {"started_boottime": begun["started_boottime"], "cursor": begun["cursor"]})
    invocation = await_invocation(call, service, begun)
    with session.holding():
        patch_transition(service, {"invocation_id": invocation})
    return {
        "invocation_id": invocation,
        "cursor": begun["cursor"],
        "started_boottime": begun["started_boottime"],
    }


def live_release(service: str) -> Optional[str]:
    release: Optional[str] = (unit_file(live_path(service)) or {}).get("release")
    return release


@operation("promote", audited=True)
def promote(session: Session, args: Json, call: Call) -> Json:
    """One rename: the proven unit becomes the live one, if everything is still as it was verified."""
    service, release, expect = args["service"], args["release"], args["expect"]
    if unit_release(args["text"]) != release:
        raise Fail("bad-request", f"the live unit's [X-Deployer] Release= is not {release}")
    with session.holding():
        state = unit_state(unit_name(service))
        running, live = running_of(state) or {}, live_release(service)
        seen = {"live": live, "invocation_id": state["InvocationID"], "running": running.get("release")}
        if live != expect.get("live"):
            raise Fail("moved", f"live is {live}, not {expect.get('live')}", **seen)
        if not is_up(state) or state["InvocationID"] != expect["invocation_id"]:
            raise Fail("moved", "the server is not the process that was verified", unit=state, **seen)
        if running.get("release") != release:
            raise Fail("moved", f"the running process belongs to release {running.get('release')}", **seen)
        os.makedirs(LIVE_DIR, exist_ok=True)
        write_file(live_path(service), args["text"])
    return {}
