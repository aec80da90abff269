"""The host's dead-man's switch: finish a transition whose operator is gone, now (guard) or at boot (recover)."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Iterator, List, Optional, Tuple

from .base import Call, Fail, Json
from .converge import Converging
from .gauges import count
from .gpus import await_gpus
from .lease import Session, audit, lease_view, locked, read_lease
from .machine import Machine, is_down, is_up
from .notify import notify
from .releases import update_manifest
from .service import Service, unit_file
from .strays import remember
from .transition import GPU_WAIT, GUARD_DONE, end_transition, patch_transition

POLL = 0.5
TTL = 30.0  # seconds that its lease lives, where its transition does not say how long an operator's does
READY = 30.0  # seconds that the restored service has until it is healthy, where its transition names none
AGAIN = 15.0  # seconds after a converge that could not be finished
TAKEN_OVER = ("lease-held", "lease-lost")  # failures by which an operator, or another guard, has taken over

USER, HOST = "root", "localhost"  # of the lease's owner
#: Stands for a transition whose file cannot be read: nobody knows how far it had come.
DAMAGED: Json = {"to": None}


def transition_of(service: Service) -> Optional[Json]:
    """The transition under way, DAMAGED, or None if there is none."""
    problems: List[str] = []
    return service.transition(problems) or (DAMAGED if problems else None)


def verdict(service: Service, transition: Json, lease: Optional[Json]) -> Tuple[str, str]:
    """Return what to do with a transition without a valid lease (``forget``, ``converge`` or ``wait``), and why."""
    machine = service.machine
    if transition is DAMAGED:
        return "converge", "transition.json is damaged"
    if transition.get("boot_id") != machine.boot_id:
        return "converge", "the host was rebooted"
    if service.live_release() == transition["to"]:
        return "converge", "the release was promoted"
    if transition.get("step") == "restore":
        return "converge", "the way back had begun"
    state = service.state()
    running = service.running(state)
    same_boot = lease is not None and lease["boot_id"] == machine.boot_id
    waited = machine.boottime() - (lease["expires_boottime"] if lease and same_boot else 0.0)
    if unit_file(service.candidate_path) is None:
        if not running:
            return "converge", "nothing is running and there is no candidate"
        if running["release"] == transition["to"]:
            return "converge", "the unproven release runs without its unit file"
        if is_up(state):
            return "forget", "the old server was not stopped"
        # Its requests have had their time by then, and systemd has killed what was left.
        if waited < sum(float(transition.get(key) or 0.0) for key in ("drain", "stop_timeout")):
            return "wait", "the old server is stopping"
        return "converge", "the old server does not stop"
    started = transition.get("invocation_id")
    if not is_up(state):
        return "converge", f"the candidate is {state['ActiveState']}"
    if state["NRestarts"] or (started and state["InvocationID"] != started):
        return "converge", "the candidate was restarted"
    if waited < float(transition.get("grace") or 0.0):
        return "wait", "the candidate is unproven; an operator may come back"
    return "converge", "the candidate is unproven and grace has ended"


def log(message: Json) -> None:
    print(" ".join(f"{key}={value}" for key, value in (message.get("event") or message).items()), flush=True)


def forget(session: Session, service: Service, transition: Json) -> None:
    with session.holding():
        try:
            update_manifest(service, transition["to"], {"state": "abandoned"})
        except (Fail, OSError):
            pass  # it was never staged, its manifest is damaged, or the disk is full
        end_transition(service, stop_guard=False)
        count(service, {}, change="abandoned")


class OwnOperator(Session):
    """The guard's session. Nobody sends heartbeats for it, so it renews its lease itself, before each change too."""

    def take(
        self,
        service: Service,
        command: str,
        transition: Json,
        why: str,
        left: Optional[Json],
        obeys_hold: bool = False,
    ) -> None:
        """Take the lease, or (``left``) that of a predecessor that is gone."""
        ttl = float(transition.get("lease") or TTL)
        self.acquire(self.named(command), service.name, why, ttl, reclaim=left, obeys_hold=obeys_hold)

    def named(self, command: str) -> Json:
        """This process as the owner of a lease."""
        pid = os.getpid()
        return {"user": USER, "host": HOST, "pid": pid, "start": self.machine.birth(pid), "command": command}

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        self.renew()
        with super().holding():
            yield


class Renewing(Call):
    """A call of the guard."""

    def __init__(self, session: Session) -> None:
        super().__init__(log)
        self.session, self.renewed = session, session.machine.boottime()
        self.interval = session.renew()["expires_in"] / 4

    def check(self) -> None:
        if self.session.machine.boottime() > self.renewed + self.interval:
            self.session.renew()
            self.renewed = self.session.machine.boottime()

    def pause(self, seconds: float) -> None:
        self.session.machine.sleep(seconds)


def finish(session: Session, service: Service, transition: Json, what: str, why: str, at_boot: bool = False) -> None:
    """Carry a verdict out, under a lease that the caller has taken."""
    args: Json = {"service": service.name, "why": why}
    args.update({key: transition.get(key) for key in ("port", "stop_timeout")})
    args["ready_timeout"] = transition.get("ready_timeout") or READY
    if transition is DAMAGED:  # what it would have recorded: whether the service was to run
        args["start"] = unit_file(service.candidate_path) is not None or service.is_enabled()
    result: Any = "stopped"
    serving: Optional[bool] = None
    told = False  # unless an operator stopped it, or has come back
    try:
        if what == "forget":
            forget(session, service, transition)
            result = "ok"
        else:
            if not at_boot and transition is not DAMAGED:
                # Whoever comes after this process stays as well until the live release is healthy.
                with contextlib.suppress(OSError), session.holding():
                    patch_transition(service, {"step": "restore"})
            call = Renewing(session)
            done = Converging(session, call, args, by_guard=True, at_boot=at_boot).run()
            result = f"ok: {'; '.join(done['actions'])}"
            if done["invocation_id"] and not done["serving"]:
                result = f"no answer of /health within {args['ready_timeout']:g} s: {'; '.join(done['actions'])}"
            serving = None if at_boot or done["returned"] else bool(done["serving"])
        told = True
    except Fail as failure:
        result = f"{failure.code}: {failure.message}"
        told = failure.code not in TAKEN_OVER
        raise
    except OSError as error:
        result, told = f"os-error: {error}", True
        raise
    finally:
        by = "recover" if at_boot else "guard"
        audit(session, f"{by}.{what}", args, result)
        deed = {"t": round(time.time(), 3), "by": by, "what": what, "why": why, "result": str(result)}
        with contextlib.suppress(OSError):
            session.machine.write_json(service.deed_path, deed)
        session.finish("released")
        if told:
            tell(service, transition, deed, serving)


def tell(service: Service, transition: Json, deed: Json, serving: Optional[bool]) -> None:
    """Count a deed, and have others told of it."""
    ok, reason, facts = deed["result"].startswith("ok"), deed["why"], {}  # type: bool, str, Json
    with contextlib.suppress(Fail, OSError), locked(service.machine):
        if not ok:
            reason = f"{reason}; {deed['result']}"
            serving = False if serving is False or is_down(service.state()) else None
            facts = {"healthy": serving}
        count(service, facts, deed=f"{deed['by']} {deed['what']} {'ok' if ok else 'failed'}")
    promoted = transition["to"] is not None and service.live_release() == transition["to"]
    notify(
        service,
        deed["by"],
        reason,
        serving,
        event="after_promote" if promoted else "after_restore",
        previous=transition.get("from") if promoted else transition["to"],
        incident=f"{transition.get('started')} {deed['result']}",
    )


def left_by_a_guard(service: Service, lease: Json) -> bool:
    """Whether a lease is that of this service's guard, recovery or assessment, and that process is gone.

    Another process may have its number by now.
    """
    owner = lease["owner"]
    here = owner.get("user") == USER and owner.get("host") == HOST
    ours = here and owner.get("command") in ("guard", "recover", "assess") and lease.get("service") == service.name
    born = service.machine.birth(int(owner.get("pid") or 0))
    return ours and (born is None or born != (owner.get("start") or born))


def look(session: OwnOperator, service: Service) -> bool:
    """Look once, and act if the verdict says so; return whether there is still a transition to guard."""
    transition, raw = transition_of(service), read_lease(session.machine)
    lease = lease_view(session.machine, raw)
    if transition is None:
        return False
    left = raw if raw and lease and lease["valid"] and left_by_a_guard(service, raw) else None
    remember(service)
    if lease and lease["valid"] and not left:
        return True
    what, why = verdict(service, transition, lease)
    if what != "wait":
        session.take(service, "guard", transition, why, left)
        if transition_of(service) == transition and verdict(service, transition, lease)[0] == what:
            log({"verdict": what, "why": repr(why)})
            finish(session, service, transition, what, why)
        else:
            session.finish("released")
    return True


def guard(machine: Machine, name: str) -> int:
    """Watch until the transition is gone. Ends with a status that tells systemd not to start it again."""
    session, service = OwnOperator(machine), Service(machine, name)
    transition_of(service)
    machine.notify("READY=1")  # `transition.begin` waits for it
    while True:
        try:
            if not look(session, service):
                with locked(machine):  # `transition.begin` may be about to write its record
                    if transition_of(service) is None:
                        return GUARD_DONE
        except Fail as failure:
            log(failure.as_json())
            if failure.code not in TAKEN_OVER:
                machine.sleep(AGAIN)
        except OSError as error:  # a disk that is full or broken; it may recover, and nobody else is here
            log({"code": "os-error", "message": str(error)})
            machine.sleep(AGAIN)
        machine.sleep(POLL)


def recover(machine: Machine, name: str) -> int:
    """At boot, before the service starts: tidy a transition of another boot, and wait a while for the GPUs."""
    service = Service(machine, name)
    try:
        tidy(OwnOperator(machine), service)
    finally:
        lacking = await_gpus(machine, wanted_at_boot(service), GPU_WAIT, machine.sleep)
        if lacking:
            log({"missing": repr(lacking)})
    return 0


def wanted_at_boot(service: Service) -> List[int]:
    """The GPUs that the boot's start of the service needs."""
    return service.gpus(service.live_release()) if service.is_enabled() else []


def tidy(session: OwnOperator, service: Service) -> None:
    """Undo a transition of another boot. Starts nothing itself, and does not wait."""
    machine = session.machine
    transition, why = transition_of(service), "the host was rebooted"
    if transition is not None and transition.get("boot_id") != machine.boot_id:
        raw = read_lease(machine)
        left = raw if raw and raw["boot_id"] == machine.boot_id and left_by_a_guard(service, raw) else None
        session.take(service, "recover", transition, why, left)
        finish(session, service, transition, "converge", why, at_boot=True)
