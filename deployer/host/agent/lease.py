"""The host's one lock, its one lease, and the audit trail."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import secrets
import time
from typing import Any, Iterator, List, Optional

from .base import (
    BOOT_ID,
    SCHEMA,
    STATE_DIR,
    VOLATILE_DIR,
    Fail,
    Json,
    Shape,
    boottime,
    read_intact,
    read_json,
    service_dir,
    set_aside,
    write_json,
)

LEASE: Shape = {
    "generation": int,
    "token": str,
    "owner": dict,
    "state": str,
    "boot_id": str,
    "expires_boottime": (int, float),
    "ttl": (int, float),
}
RENEWAL: Shape = {"generation": int, "token": str, "expires_boottime": (int, float)}
LOCK_WAIT = 60.0  # the lock is held for moments only; longer means something is wrong


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """The host's one lock. Everything under it is short: initiate there, wait outside."""
    os.makedirs(STATE_DIR, mode=0o755, exist_ok=True)
    fd = os.open(os.path.join(STATE_DIR, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = boottime() + LOCK_WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if boottime() > deadline:
                    raise Fail(
                        "busy", "another deployer process has held the host's lock for a minute"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def lease_path() -> str:
    return os.path.join(STATE_DIR, "lease.json")


def renewal_path() -> str:
    return os.path.join(VOLATILE_DIR, "renewal.json")


def read_lease(problems: Optional[List[str]] = None) -> Optional[Json]:
    """The lease's file, with its last renewal. A damaged one counts as no lease."""
    raw = read_intact(lease_path(), LEASE, problems)
    if raw and raw["state"] == "held" and raw["boot_id"] == BOOT_ID:
        with contextlib.suppress(Fail, OSError):
            renewal = read_json(renewal_path(), RENEWAL)
            if renewal and (renewal["generation"], renewal["token"]) == (raw["generation"], raw["token"]):
                raw["expires_boottime"] = max(raw["expires_boottime"], renewal["expires_boottime"])
    return raw


def write_renewal(raw: Json) -> None:
    """Keep how long the lease is good now: in memory, because a disk that is busy (a download, a checkpoint being
    read) can take longer to sync than a lease lives. A lease does not outlive the boot anyway.
    """
    kept = {name: raw[name] for name in RENEWAL}
    try:
        os.makedirs(VOLATILE_DIR, mode=0o755, exist_ok=True)
        fd = os.open(renewal_path() + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(dict(kept, schema=SCHEMA), file)
        os.rename(renewal_path() + ".new", renewal_path())
    except OSError:
        write_json(lease_path(), raw, 0o600)


def first_generation() -> int:
    """The generation where no lease can be read: above all that a damaged file may have held."""
    return int(time.time()) if glob.glob(glob.escape(lease_path()) + ".corrupt-*") else 1


def lease_view(raw: Optional[Json]) -> Optional[Json]:
    """The lease as others may see it: without the token, with what follows from the clock."""
    if raw is None:
        return None
    view = {name: value for name, value in raw.items() if name not in ("token", "schema")}
    same_boot = raw["boot_id"] == BOOT_ID
    view["expires_in"] = round(raw["expires_boottime"] - boottime(), 3) if same_boot else 0.0
    view["valid"] = raw["state"] == "held" and same_boot and view["expires_in"] > 0
    return view


class Session:
    """One holder of (at most) one lease: a channel's operator, or the guard."""

    def __init__(self) -> None:
        self.generation: Optional[int] = None
        self.owner: Json = {}
        self.service: Any = None

    def acquire(
        self, owner: Json, service: Any, reason: str, ttl: float, reclaim: Optional[Json] = None
    ) -> Json:
        with locked():
            set_aside(lease_path(), LEASE)
            raw = read_lease()
            view = lease_view(raw) or {}
            if reclaim:
                if not raw or (raw["generation"], raw["token"]) != (reclaim["generation"], reclaim["token"]):
                    raise Fail("lease-lost", "the lease was taken over by %s" % person(view), lease=view)
            elif view.get("valid") and raw and raw["generation"] != self.generation:
                seconds = view["expires_in"]
                raise Fail(
                    "lease-held", "held by %s for another %.0f s" % (person(view), seconds), lease=view
                )
            lease = {
                "generation": raw["generation"] + 1 if raw else first_generation(),
                "token": secrets.token_hex(16),
                "owner": owner,
                "service": service,
                "reason": reason,
                "ttl": float(ttl),
                "acquired": time.time(),
                "boot_id": BOOT_ID,
                "expires_boottime": boottime() + ttl,
                "state": "held",
            }
            write_json(lease_path(), lease, 0o600)
            self.generation, self.owner, self.service = lease["generation"], owner, service
        return {"generation": self.generation, "token": lease["token"], "expires_in": ttl}

    def own(self, expired_too: bool = False) -> Json:
        """Our lease, to be called under the lock. Raises when it is not ours any more."""
        raw = read_lease()
        if self.generation is None or raw is None:
            raise Fail("lease-lost", "this connection holds no lease")
        view = lease_view(raw) or {}
        if raw["generation"] != self.generation:
            raise Fail("lease-lost", "the lease was taken over by %s" % person(view), lease=view)
        if raw["state"] != "held" or raw["boot_id"] != BOOT_ID:
            raise Fail("lease-lost", "the lease has ended (%s)" % raw["state"], lease=view)
        if not expired_too and not view["valid"]:
            raise Fail("lease-lost", "the lease expired %.0f s ago" % -view["expires_in"], lease=view)
        return raw

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """The lock, with the lease still ours: the only place in which the host may be changed."""
        with locked():
            self.own()
            yield

    def renew(self) -> Json:
        with locked():
            raw = self.own(expired_too=True)
            raw["expires_boottime"] = boottime() + raw["ttl"]
            write_renewal(raw)
            return {"expires_in": raw["ttl"]}

    def finish(self, state: str) -> None:
        """Give the lease back (``released``) or leave it (``abandoned``). Grace counts from now."""
        with locked():
            try:
                raw = self.own(expired_too=True)
            except Fail:
                return
            raw.update(state=state, expires_boottime=min(raw["expires_boottime"], boottime()))
            write_json(lease_path(), raw, 0o600)
            self.generation = None


def person(lease: Json) -> str:
    owner = lease.get("owner") or {}
    return "%s@%s (%s)" % (owner.get("user") or "?", owner.get("host") or "?", owner.get("command") or "?")


def audit(session: Session, op: str, args: Json, result: str) -> None:
    """One line for one change: when, who, what, with what result. Texts appear as their length only.

    A disk that takes no line is no reason not to change the host: the way back may be what is under way.
    """
    service = args.get("service")
    if not isinstance(service, str) or not os.path.isdir(service_dir(service)):
        return

    def brief(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: brief(item) for name, item in value.items()}
        return "<%d characters>" % len(value) if isinstance(value, str) and len(value) > 120 else value

    shown = {
        name: brief(value) for name, value in args.items() if name not in ("service", "owner", "reclaim")
    }
    for name in ("files", "append", "manifest", "patch"):
        if isinstance(shown.get(name), dict):
            shown[name] = sorted(shown[name])
    line = {"t": round(time.time(), 3), "op": op, "owner": session.owner, "generation": session.generation}
    path = os.path.join(service_dir(service), "audit.jsonl")
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(dict(line, args=shown, result=result), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
