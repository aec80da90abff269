"""Operations on the lease: acquire, renew, release."""

from __future__ import annotations

from .base import Call, Fail, Json, boottime
from .lease import Session
from .registry import operation

POLL = 0.25


@operation("lease.acquire", audited=True)
def acquire(session: Session, args: Json, call: Call) -> Json:
    deadline = boottime() + float(args.get("wait") or 0.0)
    while True:
        try:
            return session.acquire(
                args["owner"],
                args.get("service"),
                args.get("reason") or "",
                float(args["ttl"]),
                args.get("reclaim"),
            )
        except Fail as failure:
            if failure.code != "lease-held" or boottime() >= deadline:
                raise
        call.sleep(POLL)


@operation("lease.renew")
def renew(session: Session, args: Json, call: Call) -> Json:
    return session.renew()


@operation("lease.release", audited=True)
def release(session: Session, args: Json, call: Call) -> Json:
    session.finish("released")
    return {}
