"""The host's dead-man's switch: finish a transition that nobody holds any more, now (guard) or at boot (recover)."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, List, Optional, Tuple

from .base import (
    BOOT_ID,
    TRANSITION,
    Call,
    Fail,
    Json,
    boottime,
    candidate_path,
    read_intact,
    transition_path,
    unit_file,
    unit_name,
)
from .converge import Converging
from .lease import Session, audit, lease_view, read_lease
from .reading import enable_link, running_of
from .releases import update_manifest
from .systemd import is_up, unit_state
from .transition import GUARD_DONE, end_transition, live_release

POLL = 0.5
TTL = 60.0
READY = 30.0  # how long the guard looks whether the restored service starts; it goes on loading alone
AGAIN = 15.0  # after a converge that could not be finished

OWNER = {"user": "root", "host": "localhost", "pid": 0, "command": "guard"}


#: Stands for a transition whose file cannot be read: nobody knows how far it had come.
DAMAGED: Json = {"to": None}


def transition_of(service: str) -> Optional[Json]:
    """The transition under way, DAMAGED, or None where there is none."""
    problems: List[str] = []
    return read_intact(transition_path(service), TRANSITION, problems) or (DAMAGED if problems else None)


def verdict(service: str, transition: Json, lease: Optional[Json]) -> Tuple[str, str]:
    """What to do with a transition without a valid lease: ``forget``, ``converge`` or ``wait``; and why."""
    if transition is DAMAGED:
        return "converge", "transition.json is damaged"
    if transition.get("boot_id") != BOOT_ID:
        return "converge", "the host was rebooted"
    if live_release(service) == transition["to"]:
        return "converge", "the release was promoted"
    state = unit_state(unit_name(service))
    running = running_of(state)
    waited = boottime() - (lease["expires_boottime"] if lease and lease["boot_id"] == BOOT_ID else 0.0)
    if unit_file(candidate_path(service)) is None:
        if not running:
            return "converge", "nothing is running and there is no candidate"
        if running["release"] == transition["to"]:
            return "converge", "the unproven release runs without its unit file"
        if is_up(state):
            return "forget", "the old server was not stopped"
        if waited < float(transition.get("stop_timeout") or 0.0):
            return "wait", "the old server is stopping"
        return "converge", "the old server does not stop"
    started = transition.get("invocation_id")
    if transition.get("step") == "restore":
        return "converge", "the operator had begun to go back"
    if not is_up(state):
        return "converge", f"the candidate is {state['ActiveState']}"
    if state["NRestarts"] or (started and state["InvocationID"] != started):
        return "converge", "the candidate was restarted"
    if waited < float(transition.get("grace") or 0.0):
        return "wait", "the candidate is unproven; an operator may come back"
    return "converge", "the candidate is unproven and grace has ended"


def say(message: Json) -> None:
    print(" ".join(f"{key}={value}" for key, value in (message.get("event") or message).items()), flush=True)


def forget(session: Session, service: str, transition: Json) -> None:
    with session.holding():
        try:
            update_manifest(service, transition["to"], {"state": "abandoned"})
        except (Fail, OSError):
            pass  # it was never staged, its manifest is damaged, or the disk is full
        end_transition(service, stop_guard=False)


class Renewing(Call):
    """The guard is its own operator: it renews its lease as it goes along."""

    def __init__(self, session: Session) -> None:
        super().__init__(say)
        self.session, self.renewed = session, boottime()

    def check(self) -> None:
        if boottime() > self.renewed + TTL / 4:
            self.session.renew()
            self.renewed = boottime()


def finish(
    session: Session, service: str, transition: Json, what: str, why: str, at_boot: bool = False
) -> None:
    """Carry a verdict out, under a lease that the caller has taken."""
    args: Json = {"service": service, "why": why}
    args.update({key: transition.get(key) for key in ("port", "stop_timeout")}, ready_timeout=READY)
    if transition is DAMAGED:  # what it would have told: whether the service was to run
        link = enable_link(unit_name(service))
        args["start"] = os.path.lexists(candidate_path(service)) or os.path.lexists(link)
    result: Any = "ok"
    try:
        if what == "forget":
            forget(session, service, transition)
        else:
            done = Converging(session, Renewing(session), args, by_guard=True, at_boot=at_boot).run()
            result = f"ok: {'; '.join(done['actions'])}"
    except Fail as failure:
        result = f"{failure.code}: {failure.message}"
        raise
    except OSError as error:
        result = f"os-error: {error}"
        raise
    finally:
        audit(session, f"{'recover' if at_boot else 'guard'}.{what}", args, result)
        session.finish("released")


def tell_systemd(text: str) -> None:
    """The notification protocol of sd_notify(3): `transition.begin` waits for our sign of life."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(text.encode("ascii"), "\0" + address[1:] if address[0] == "@" else address)


def guard(service: str) -> int:
    """Watch until the transition is gone. Ends with a status that tells systemd not to start it again."""
    session = Session()
    transition_of(service)
    tell_systemd("READY=1")
    while True:
        try:
            transition, lease = transition_of(service), lease_view(read_lease())
            if transition is None:
                return GUARD_DONE
            if not (lease and lease["valid"]):
                what, why = verdict(service, transition, lease)
                if what != "wait":
                    session.acquire(OWNER, service, why, TTL)
                    if (
                        transition_of(service) == transition
                        and verdict(service, transition, lease)[0] == what
                    ):
                        say({"verdict": what, "why": repr(why)})
                        finish(session, service, transition, what, why)
                    else:
                        session.finish("released")
        except Fail as failure:
            say(failure.as_json())
            if failure.code not in ("lease-held", "lease-lost"):
                time.sleep(AGAIN)
        except OSError as error:  # a disk that is full or broken; it may recover, and nobody else is here
            say({"code": "os-error", "message": str(error)})
            time.sleep(AGAIN)
        time.sleep(POLL)


def recover(service: str) -> int:
    """At boot, before the service starts: tidy a transition of another boot. Never waits for anything."""
    transition = transition_of(service)
    if transition is None or transition.get("boot_id") == BOOT_ID:
        return 0
    session = Session()
    session.acquire(dict(OWNER, command="recover"), service, "the host was rebooted", TTL)
    finish(session, service, transition, "converge", "the host was rebooted", at_boot=True)
    return 0
