"""The host's one lock, its one lease, and the audit trail."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import time
from typing import Any, Iterator, List, Optional

from .base import SCHEMA, Call, Fail, Json, checked, operation
from .files import Shape, append, read_intact, read_json, remove_file, set_aside
from .machine import Machine

LEASE: Shape = {
    "generation": int,
    "token": str,
    "owner": dict,
    "state": str,
    "boot_id": str,
    "expires_boottime": (int, float),
    "ttl": (int, float),
}
HOLD: Shape = {"reason": str, "owner": dict, "since": (int, float), "until": (int, float, type(None))}
RENEWAL: Shape = {"generation": int, "token": str, "expires_boottime": (int, float)}
LOCK_WAIT = 60.0  # seconds; the lock is held for moments only, so longer means something is wrong
POLL = 0.25


@contextlib.contextmanager
def locked(machine: Machine) -> Iterator[None]:
    """The host's one lock. Everything under it is short: initiate there, wait outside."""
    os.makedirs(machine.state_dir, mode=0o755, exist_ok=True)
    fd = os.open(os.path.join(machine.state_dir, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = machine.boottime() + LOCK_WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if machine.boottime() > deadline:
                    raise Fail("busy", "another deployer process has held the host's lock for a minute") from None
                machine.sleep(0.02)
        yield
    finally:
        os.close(fd)


def lease_path(machine: Machine) -> str:
    return os.path.join(machine.state_dir, "lease.json")


def renewal_path(machine: Machine) -> str:
    return os.path.join(machine.volatile_dir, "renewal.json")


def read_lease(machine: Machine, problems: Optional[List[str]] = None) -> Optional[Json]:
    """The lease's file, with its last renewal. A damaged one counts as no lease."""
    raw = read_intact(lease_path(machine), LEASE, problems)
    if raw and raw["state"] == "held" and raw["boot_id"] == machine.boot_id:
        with contextlib.suppress(Fail, OSError):
            renewal = read_json(renewal_path(machine), RENEWAL)
            if renewal and (renewal["generation"], renewal["token"]) == (raw["generation"], raw["token"]):
                raw["expires_boottime"] = max(raw["expires_boottime"], renewal["expires_boottime"])
    return raw


def write_renewal(machine: Machine, raw: Json) -> None:
    """Record how long the lease is good now: in memory, because a disk that is busy (a download, a checkpoint being
    read) can take longer to sync than a lease lives. A lease does not outlive the boot anyway.
    """
    path = renewal_path(machine)
    try:
        os.makedirs(machine.volatile_dir, mode=0o755, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path + ".new", flags, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(dict({name: raw[name] for name in RENEWAL}, schema=SCHEMA), file)
        os.rename(path + ".new", path)
    except OSError:
        machine.write_json(lease_path(machine), raw, 0o600)


def first_generation(machine: Machine) -> int:
    """The generation to begin with if no lease can be read: above all that a damaged file may have held."""
    return int(time.time()) if glob.glob(glob.escape(lease_path(machine)) + ".corrupt-*") else 1


def lease_view(machine: Machine, raw: Optional[Json]) -> Optional[Json]:
    """The lease as others may see it: without the token, with what follows from the clock."""
    if raw is None:
        return None
    view = {name: value for name, value in raw.items() if name not in ("token", "schema")}
    same_boot = raw["boot_id"] == machine.boot_id
    view["expires_in"] = round(raw["expires_boottime"] - machine.boottime(), 3) if same_boot else 0.0
    view["valid"] = raw["state"] == "held" and same_boot and view["expires_in"] > 0
    if view["valid"]:
        view["held_for"] = round(max(0.0, time.time() - float(raw.get("acquired") or time.time())), 1)
        view["step"] = step_of(machine, raw.get("service"))
    return view


def hold_path(machine: Machine) -> str:
    return os.path.join(machine.state_dir, "hold.json")


def read_hold(machine: Machine, problems: Optional[List[str]] = None) -> Optional[Json]:
    """The hold that keeps operators from changing the host; None if there is none, or if its time is over."""
    hold = read_intact(hold_path(machine), HOLD, problems)
    if hold is None or (hold["until"] is not None and hold["until"] <= time.time()):
        return None
    return {name: hold[name] for name in HOLD}


def step_of(machine: Machine, service: Any) -> Optional[str]:
    """The step of the change that a service is in; None if it is not being changed."""
    with contextlib.suppress(Fail, OSError):
        change = read_json(
            os.path.join(machine.state_dir, checked(service, "service"), "transition.json"), {"step": str}
        )
        return change["step"] if change else None
    return None


def holder(lease: Json) -> str:
    owner = lease.get("owner") or {}
    return "%s@%s (%s)" % (owner.get("user") or "?", owner.get("host") or "?", owner.get("command") or "?")


class Session:
    """One holder of (at most) one lease: a channel's operator, or the guard."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.generation: Optional[int] = None
        self.owner: Json = {}
        self.service: Any = None

    def acquire(
        self,
        owner: Json,
        service: Any,
        reason: str,
        ttl: float,
        reclaim: Optional[Json] = None,
        obeys_hold: bool = False,
    ) -> Json:
        """Take the lease. A hold stops operators who begin something, never the guard and never one who comes back."""
        machine = self.machine
        with locked(machine):
            set_aside(lease_path(machine), LEASE)
            raw = read_lease(machine)
            view = lease_view(machine, raw) or {}
            if reclaim:
                if not raw or (raw["generation"], raw["token"]) != (reclaim["generation"], reclaim["token"]):
                    raise Fail("lease-lost", "the lease was taken over by %s" % holder(view), lease=view)
            elif view.get("valid") and view["generation"] != self.generation:
                raise Fail("lease-held", "held by %s" % holder(view), lease=view)
            hold = read_hold(machine)
            if hold and obeys_hold and not reclaim:
                raise Fail("on-hold", "on hold by %s: %s" % (holder(hold), hold["reason"]), hold=hold)
            lease = {
                "generation": raw["generation"] + 1 if raw else first_generation(machine),
                "token": os.urandom(16).hex(),
                "owner": owner,
                "service": service,
                "reason": reason,
                "ttl": float(ttl),
                "acquired": time.time(),
                "boot_id": machine.boot_id,
                "expires_boottime": machine.boottime() + ttl,
                "state": "held",
            }
            machine.write_json(lease_path(machine), lease, 0o600)
            self.generation, self.owner, self.service = lease["generation"], owner, service
        return {"generation": self.generation, "token": lease["token"], "expires_in": ttl}

    def own(self, expired_too: bool = False) -> Json:
        """Return our lease; to be called under the lock. Raise Fail ``lease-lost`` if it is not ours any more."""
        raw = read_lease(self.machine)
        if self.generation is None or raw is None:
            raise Fail("lease-lost", "this connection holds no lease")
        view = lease_view(self.machine, raw) or {}
        if raw["generation"] != self.generation:
            raise Fail("lease-lost", "the lease was taken over by %s" % holder(view), lease=view)
        if raw["state"] != "held" or raw["boot_id"] != self.machine.boot_id:
            raise Fail("lease-lost", "the lease has ended (%s)" % raw["state"], lease=view)
        if not expired_too and not view["valid"]:
            raise Fail("lease-lost", "the lease expired %.0f s ago" % -view["expires_in"], lease=view)
        return raw

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """The lock, with the lease still ours: the only place in which the host may be changed."""
        with locked(self.machine):
            self.own()
            yield

    def renew(self) -> Json:
        with locked(self.machine):
            raw = self.own(expired_too=True)
            raw["expires_boottime"] = self.machine.boottime() + raw["ttl"]
            write_renewal(self.machine, raw)
            return {"expires_in": raw["ttl"]}

    def finish(self, state: str) -> None:
        """Give the lease back (``released``) or leave it (``abandoned``). Grace counts from now."""
        with locked(self.machine):
            try:
                raw = self.own(expired_too=True)
            except Fail:
                return
            raw.update(state=state, expires_boottime=min(raw["expires_boottime"], self.machine.boottime()))
            self.machine.write_json(lease_path(self.machine), raw, 0o600)
            self.generation = None


def audit(session: Session, op: str, args: Json, result: str) -> None:
    """Append one line for one change: when, who, what, with what result. Long texts appear as their length only.

    Failing to write the line must not block the operation: it may be the way back.
    """
    service = args.get("service")
    if not isinstance(service, str):
        return
    folder = os.path.join(session.machine.state_dir, checked(service, "service"))
    if not os.path.isdir(folder):
        return

    def brief(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: brief(item) for name, item in value.items()}
        return "<%d characters>" % len(value) if isinstance(value, str) and len(value) > 120 else value

    shown = {name: brief(value) for name, value in args.items() if name not in ("service", "owner", "reclaim")}
    for name in ("files", "append", "manifest", "patch"):
        if isinstance(shown.get(name), dict):
            shown[name] = sorted(shown[name])
    line = {"t": round(time.time(), 3), "op": op, "owner": session.owner, "generation": session.generation}
    text = json.dumps(dict(line, args=shown, result=result), ensure_ascii=False) + "\n"
    with contextlib.suppress(OSError):
        append(os.path.join(folder, "audit.jsonl"), text, 0o600)


@operation("lease.acquire", audited=True)
def acquire(session: Session, args: Json, call: Call) -> Json:
    deadline = session.machine.boottime() + float(args.get("wait") or 0.0)
    words = args["owner"], args.get("service"), args.get("reason") or "", float(args["ttl"])
    while True:
        try:
            return session.acquire(*words, reclaim=args.get("reclaim"), obeys_hold=True)
        except Fail as failure:
            if failure.code != "lease-held" or session.machine.boottime() >= deadline:
                raise
        call.sleep(POLL)


@operation("lease.renew")
def renew(session: Session, args: Json, call: Call) -> Json:
    return session.renew()


@operation("lease.release", audited=True)
def release(session: Session, args: Json, call: Call) -> Json:
    session.finish("released")
    return {}


@operation("hold.set", audited=True)
def set_hold(session: Session, args: Json, call: Call) -> Json:
    """Keep operators from changing the host from now on; a change under way goes on. Needs no lease."""
    machine, seconds = session.machine, args.get("seconds")
    with locked(machine):
        hold = read_hold(machine)
        if hold:
            raise Fail("on-hold", "on hold by %s: %s" % (holder(hold), hold["reason"]), hold=hold)
        now = time.time()
        until = None if seconds is None else now + float(seconds)
        hold = {"reason": str(args["reason"]), "owner": args["owner"], "since": now, "until": until}
        machine.write_json(hold_path(machine), hold, 0o600)
    return {"hold": hold}


@operation("hold.release", audited=True)
def release_hold(session: Session, args: Json, call: Call) -> Json:
    """End the hold; answers the one that was ended."""
    with locked(session.machine):
        hold = read_hold(session.machine)
        remove_file(hold_path(session.machine))
    return {"hold": hold}
