"""Services that must not run beside another: what a change records of them, how they make room, and who may start.

They are named in the transition's ``exclusive``, so the guard and recovery bring back what the change has stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, List, Tuple

from .base import Call, Fail, Json
from .files import remove_file
from .gauges import count
from .lease import Session, audit
from .machine import Machine, is_down
from .service import Service
from .stop import STOP_TIMEOUT, stop_service


def rivals(machine: Machine, items: Any) -> List[Tuple[Service, Json]]:
    """The services in a list of ``exclusive``, each with its record. What does not name a service is left out."""
    found = []
    for item in items or []:
        if isinstance(item, dict):
            with contextlib.suppress(Fail):
                found.append((Service(machine, item.get("service")), item))
    return found


def declared(text: str) -> List[Json]:
    """The services that a unit's text excludes, as ``exclusive`` names them."""
    words = " ".join(re.findall(r"^Conflicts=(.*)$", text, re.M)).split()
    units = (re.match(r"sglang-(.+)\.service$", word) for word in words)
    return [{"service": unit.group(1)} for unit in units if unit]


def runs(service: Service) -> bool:
    return not is_down(service.state()) or bool(service.pids())


def recorded(machine: Machine, items: Any) -> List[Json]:
    """What a transition records of the services that it is to stop. Raise Fail ``excluded`` if one is in a change."""
    found = rivals(machine, items)
    for service, _ in found:
        if service.transition() is not None:
            raise Fail("excluded", f"{service.name} is being changed itself, on the same GPUs or port")
        if runs(service) and not os.path.exists(service.live_path):
            raise Fail("excluded", f"{service.unit} runs and has no live release that could be brought back")
    return [
        dict(item, was_active=not is_down(service.state()), was_enabled=service.is_enabled()) for service, item in found
    ]


def stopped_any(items: Any) -> bool:
    """Whether there is something to bring back."""
    return any(isinstance(item, dict) and (item.get("was_active") or item.get("was_enabled")) for item in items or [])


def refuse_rivals(machine: Machine, items: Any, unit: str) -> None:
    """Raise Fail ``excluded`` if one of the services runs, or may be started by the change that it is in.

    One that ``gives_way`` is in the change that asks.
    """
    for service, item in rivals(machine, items):
        changing = service.transition() is not None and not item.get("gives_way")
        if runs(service) or changing:
            why = "is being changed" if changing else "runs"
            text = f"{service.unit} {why}, on the same GPUs or port: {unit} was not started"
            raise Fail("excluded", text, service=service.name)


def make_room(session: Session, call: Call, by: str, items: Any) -> List[str]:
    """Disable and stop these services for ``by``; return the names of those that were enabled or running."""
    names = []
    for service, item in rivals(session.machine, items):
        with session.holding():
            enabled = service.is_enabled()
            if enabled:
                remove_file(service.enable_link)
                session.machine.systemctl("daemon-reload")
        up = runs(service)
        if up:
            port = service.port() or int(item.get("port") or 0)
            patience = float(item.get("stop_timeout") or STOP_TIMEOUT)
            stop_service(session, call, service, port, float(item.get("drain") or 0.0), patience)
        if up or enabled:
            audit(session, "unit.exclude", {"service": service.name, "by": by}, "ok")
            with session.holding():
                count(service, {"healthy": False})
            names.append(service.name)
    return names
