"""Operations that commands begin with: hello, http. They need little of the agent, so they are answered soonest."""

from __future__ import annotations

import os
import socket
import sys
import time

from deployer.reach import HEALTH_TIMEOUT

from .base import SCHEMA, Call, Json, operation, own_hash
from .lease import Session


@operation("hello")
def hello(session: Session, args: Json, call: Call) -> Json:
    """Say who answers; ``quick``: without systemd's version, for which it must be asked."""
    machine = session.machine
    return {
        "schema": SCHEMA,
        "agent": own_hash(),
        "python": sys.version.split()[0],
        "uid": os.geteuid(),
        "hostname": socket.gethostname(),
        "boot_id": machine.boot_id,
        "systemd": None if args.get("quick") else machine.systemd_version(),
        "booted": machine.booted(),
        "init": machine.init(),
        "now": time.time(),
        "now_boottime": machine.boottime(),
    }


@operation("http")
def http(session: Session, args: Json, call: Call) -> Json:
    return session.machine.http(
        args.get("address") or "127.0.0.1",
        int(args["port"]),
        args["path"],
        float(args.get("timeout") or HEALTH_TIMEOUT),
        args.get("method") or "GET",
        args.get("body"),
        args.get("headers"),
    )
