"""Operations of a transition: begin, step, end; unit.start and promote. And the units that outlive the agent."""

from __future__ import annotations

import os
import sys
import time
from typing import List

from deployer.reach import unit_name

from . import source
from .base import Call, Fail, Json, operation, own_hash
from .exclusion import make_room, recorded, refuse_rivals
from .files import read_json, remove_file, set_aside, write_link
from .lease import Session
from .machine import Machine, is_down, is_up
from .releases import make_folders
from .service import BEGUN, TRANSITION, Service, unit_release
from .strays import remember

GUARD_DONE = 77  # the guard's exit status if nothing is left to guard: systemd must not restart it then
EXEC_WAIT = 5.0  # seconds from `systemctl start` until the engine's program runs in place of systemd's own
RECOVER_WAIT = 20.0  # seconds that recovery has at boot, besides those for the GPUs
GPU_WAIT = 120.0  # seconds for which it waits for GPUs that are not there yet: the boot goes on without them
START_WAIT = 20.0  # seconds from `systemctl start` until systemd has begun: a new invocation

GUARD_UNIT = """\
[Unit]
Description=deployer: guard of service %i, finishes a deployment whose operator is gone
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
Description=deployer: tidy a deployment of service %i that a power failure cut short, and wait for its GPUs
Before={unit}
ConditionPathExists=|{state}/%i/transition.json
ConditionPathExists=|{live}/{unit}
StartLimitIntervalSec=900
StartLimitBurst=5

[Service]
Type=oneshot
ExecStart={command} recover %i
{environment}TimeoutStartSec={recover_seconds}
{again}
[Install]
WantedBy=multi-user.target
"""

#: Type=exec: the boot does not wait until it has ended.
ASSESS_UNIT = """\
[Unit]
Description=deployer: see whether service %i comes up after a boot
After={unit} deployer-recover@%i.service
ConditionPathExists={live}/{unit}
StartLimitIntervalSec=600
StartLimitBurst=20

[Service]
Type=exec
ExecStart={command} assess %i
{environment}Restart=on-failure
RestartSec=5
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""


def quoted(word: str) -> str:
    for special, escape in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(special, escape)
    return f'"{word}"'


def own_program(machine: Machine) -> List[str]:
    """How to run the agent from the host's disk, where `install` puts it."""
    return [os.path.realpath(sys.executable), os.path.join(machine.state_dir, f"agent-{own_hash()}.py")]


def own_settings() -> List[str]:
    """The variables that say where the agent's folders are, if they are not the usual ones."""
    names = sorted(key for key in os.environ if key.startswith("DEPLOYER_") and key.endswith("_DIR"))
    return [f"{name}={os.environ[name]}" for name in names]


def install(service: Service) -> bool:
    """Put the agent's file and the units that run it in place, under the lock; return whether anything changed."""
    machine = service.machine
    os.makedirs(machine.state_dir, mode=0o755, exist_ok=True)
    command = own_program(machine)
    path, name = command[1], os.path.basename(command[1])
    # Its text is compared: the name alone proves nothing, a power cut may have emptied it.
    machine.write_changed(path, source().decode("utf-8"))
    values = {
        "command": " ".join(map(quoted, command)),
        "environment": "".join(f"Environment={quoted(setting)}\n" for setting in own_settings()),
        "state": machine.state_dir,
        "done": GUARD_DONE,
        # Killed, it begins again. An older systemd refuses a unit of this type that says so.
        "again": "Restart=on-failure\nRestartSec=1\n" if (machine.systemd_version() or 0) >= 244 else "",
        "unit": unit_name("%i"),
        "live": machine.live_dir,
        "recover_seconds": f"{RECOVER_WAIT + GPU_WAIT:g}",
    }
    recover, assess = (os.path.join(machine.live_dir, f"deployer-{kind}@.service") for kind in ("recover", "assess"))
    guard = os.path.join(machine.run_dir, "deployer-guard@.service")
    changed = machine.write_changed(guard, GUARD_UNIT.format(**values))
    changed |= machine.write_changed(recover, RECOVER_UNIT.format(**values))
    changed |= machine.write_changed(assess, ASSESS_UNIT.format(**values))
    changed |= write_link(service.recover_link, recover)
    changed |= write_link(service.assess_link, assess)
    if changed:
        machine.systemctl("daemon-reload")
        for other in os.listdir(machine.state_dir):
            if other.startswith("agent-") and other.endswith(".py") and other != name:
                remove_file(os.path.join(machine.state_dir, other))
    return changed


def transition_of(service: Service) -> Json:
    transition = read_json(service.transition_path, TRANSITION)
    if transition is None:
        raise Fail("no-transition", f"no transition of {service.name} is under way")
    return transition


def patch_transition(service: Service, patch: Json) -> Json:
    transition = dict(transition_of(service), **patch, updated=time.time())
    service.machine.write_json(service.transition_path, transition)
    return transition


@operation("transition.begin", audited=True)
def begin(session: Session, args: Json, call: Call) -> Json:
    machine, service, wanted = session.machine, Service(session.machine, args["service"]), args["transition"]
    path, guard = service.transition_path, service.guard_unit
    with session.holding():
        make_folders(service)
        damaged = set_aside(path, TRANSITION)
        earlier = read_json(path, TRANSITION)
        machine.make_reserve()
        if earlier and earlier["to"] != wanted["to"]:
            text = f"a transition of {service.name} to {earlier['to']} is under way"
            raise Fail("exists", text, transition=earlier)
        transition = {
            "was_active": service.state()["ActiveState"] == "active",
            "was_enabled": service.is_enabled(),
            "started": time.time(),
        }
        transition.update(earlier or (damaged and service.begun()) or {})
        transition.setdefault("exclusive", recorded(machine, wanted.get("exclusive")))
        wanted = {key: value for key, value in wanted.items() if key != "exclusive"}
        transition.update(wanted, boot_id=machine.boot_id, updated=time.time())
        install(service)
        # Before the record, which so has a guard at every moment: it waits for our lock before it looks.
        machine.systemctl("reset-failed", guard, check=False)
        started = machine.systemctl("start", guard, check=False)
        if started.returncode:
            raise Fail("guard", f"the guard does not start: {started.stderr.strip()}", unit=guard)
        machine.write_json(service.begun_path, {key: transition[key] for key in BEGUN})
        machine.write_json(path, transition)
    return {"transition": transition}


@operation("transition.step", audited=True)
def step(session: Session, args: Json, call: Call) -> Json:
    service, patch = Service(session.machine, args["service"]), args.get("patch") or {}
    with session.holding():
        return {"transition": patch_transition(service, dict(patch, step=args["step"]))}


def end_transition(service: Service, stop_guard: bool = True) -> None:
    """Remove the record, then the guard; to be called under the lock."""
    remove_file(service.transition_path)
    remove_file(service.begun_path)
    if stop_guard:
        service.machine.systemctl("stop", "--no-block", service.guard_unit, check=False)


@operation("transition.end", audited=True)
def end(session: Session, args: Json, call: Call) -> Json:
    with session.holding():
        end_transition(Service(session.machine, args["service"]))
    return {}


@operation("unit.exclude", audited=True)
def exclude(session: Session, args: Json, call: Call) -> Json:
    """Stop and disable the services that the transition has recorded as not to run beside this one."""
    service = Service(session.machine, args["service"])
    return {"stopped": make_room(session, call, service.name, transition_of(service).get("exclusive"))}


def begin_start(service: Service, path: str) -> Json:
    """Under the lock: reload, check that the unit in force is the file at ``path``, and ask systemd to start it."""
    machine, unit = service.machine, service.unit
    machine.systemctl("daemon-reload")
    before = service.state()
    fragment = before["FragmentPath"]
    if fragment != path:
        text = f"{unit} is read from {fragment or 'nowhere'}, not from {path}"
        raise Fail("shadowed", text, fragment=fragment, shadows=service.shadows(before))
    machine.systemctl("reset-failed", unit, check=False)
    cursor, requested = machine.journal_cursor(), machine.boottime()
    machine.systemctl("start", "--no-block", unit)
    return {"before": before["InvocationID"], "cursor": cursor, "started_boottime": requested}


def await_invocation(call: Call, service: Service, start: Json) -> str:
    """Return the invocation id of what `begin_start` started, as soon as systemd has begun it."""
    machine = service.machine
    deadline = machine.boottime() + START_WAIT
    while True:
        state = service.state()
        begun = state["InvocationID"] and state["InvocationID"] != start["before"]
        # Until execve() is done, which Type=exec tells, the process does not show whose release it is.
        executed = state["ActiveState"] != "activating" or machine.boottime() > start["started_boottime"] + EXEC_WAIT
        if begun and executed:
            return str(state["InvocationID"])
        if machine.boottime() > deadline:
            raise Fail("not-started", f"systemd did not begin to start {service.unit}", unit=state)
        call.sleep(0.05)


@operation("unit.start", audited=True)
def unit_start(session: Session, args: Json, call: Call) -> Json:
    machine, service, release = session.machine, Service(session.machine, args["service"]), args["release"]
    path = service.candidate_path
    if unit_release(args["text"]) != release:
        raise Fail("bad-request", f"the candidate's [X-Deployer] Release= is not {release}")
    with session.holding():
        transition = transition_of(service)
        if transition["to"] != release:
            raise Fail("moved", f"the transition under way is not to {release}")
        refuse_rivals(machine, transition.get("exclusive"), service.unit)
        state = service.state()
        if not is_down(state):
            raise Fail("moved", f"{service.unit} is {state['ActiveState']}: it must be stopped first", unit=state)
        if os.path.islink(path):
            raise Fail("shadowed", f"{path} is a link (a mask?)", shadows=[path])
        os.makedirs(machine.run_dir, exist_ok=True)
        machine.write_file(path, args["text"])
        try:
            start = begin_start(service, path)
        except Fail:
            remove_file(path)
            machine.systemctl("daemon-reload", check=False)
            raise
        answer = {"cursor": start["cursor"], "started_boottime": start["started_boottime"]}
        patch_transition(service, answer)
    answer["invocation_id"] = await_invocation(call, service, start)
    with session.holding():
        patch_transition(service, {"invocation_id": answer["invocation_id"]})
    return answer


@operation("promote", audited=True)
def promote(session: Session, args: Json, call: Call) -> Json:
    """One rename: the proven unit becomes the live one, if everything is still as it was verified."""
    service, release, expect = Service(session.machine, args["service"]), args["release"], args["expect"]
    if unit_release(args["text"]) != release:
        raise Fail("bad-request", f"the live unit's [X-Deployer] Release= is not {release}")
    with session.holding():
        state, live = service.state(), service.live_release()
        running = (service.running(state) or {}).get("release")
        seen = {"live": live, "invocation_id": state["InvocationID"], "running": running}
        if live != expect.get("live"):
            raise Fail("moved", f"the live release is {live}, not {expect.get('live')}", **seen)
        if not is_up(state) or state["InvocationID"] != expect["invocation_id"]:
            raise Fail("moved", "the server is not the process that was verified", unit=state, **seen)
        if running != release:
            raise Fail("moved", f"the running process belongs to release {running}", **seen)
        os.makedirs(session.machine.live_dir, exist_ok=True)
        session.machine.write_file(service.live_path, args["text"])
    remember(service)
    return {}
