"""Converge: make the host equal to its live release. The one routine behind rollback, recovery and repair."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, List, Optional

from deployer.reach import HEALTH_TIMEOUT, collides, reachable

from .base import Call, Fail, Json, operation
from .exclusion import make_room, refuse_rivals, rivals, stopped_any
from .files import remove_file, set_aside, write_link
from .gauges import count, outcome
from .lease import Session
from .machine import is_down, is_up
from .releases import update_manifest
from .service import TRANSITION, Service
from .stop import STOP_TIMEOUT, stop_service
from .strays import remember, strays
from .transition import await_invocation, begin_start, end_transition, install

TRIES = 2  # of /health, before a server that listens counts as hung
RETURNED = ("started", "invocation_id", "cursor", "started_boottime")  # what `watch` needs of one brought back
READY_LINE = "fired up and ready to roll"  # the engine logs it when /health begins to answer 200


class Converging:
    """One run of converge. ``at_boot``: systemd will start the service itself, so nothing is stopped or awaited."""

    def __init__(self, session: Session, call: Call, args: Json, *, by_guard: bool = False, at_boot: bool = False):
        self.session, self.call, self.args, self.machine = session, call, args, session.machine
        self.by_guard, self.at_boot = by_guard, at_boot
        self.service = Service(self.machine, args["service"])
        self.unit = self.service.unit
        self.actions: List[str] = []
        self.start: Optional[Json] = None
        self.invocation: Optional[str] = None
        self.cursor: Optional[str] = None
        self.port = int(args.get("port") or 0)
        self.patience = float(args.get("ready_timeout") or 0.0)
        self.exclusive: Any = args.get("exclusive")
        self.returned: List[Json] = []

    def did(self, action: str) -> None:
        self.actions.append(action)
        self.call.emit({"action": action})

    def run(self) -> Json:
        service, damage = self.service, []  # type: Service, List[str]
        transition = service.transition(damage) or (service.begun() if damage else None)
        live, has_live = service.live_release(), os.path.exists(service.live_path)
        promoted = bool(transition and has_live and transition["to"] == live)
        if transition:
            self.exclusive = transition.get("exclusive") or self.exclusive
        gives_way = bool(transition) and not promoted and stopped_any(self.exclusive)
        wanted = promoted or (bool(self.args.get("start")) and not gives_way)
        before = transition or self.args.get("before") or {}
        want_up = wanted or bool(before.get("was_active"))
        want_enabled = wanted or bool(before.get("was_enabled"))
        self.remove_what_is_not_live(live, has_live, bool(transition or damage))
        serving = False
        if promoted:
            for name in make_room(self.session, self.call, service.name, self.exclusive):
                self.did(f"{name} stopped and disabled")
        if has_live:
            self.put_in_force(want_enabled)
            serving = self.bring_up(live, want_enabled if self.at_boot else want_up)
        if gives_way:
            self.bring_back(stays=has_live and (want_up or want_enabled))
        with self.session.holding():
            self.mark_manifests(live if has_live else None, transition)
            aside = set_aside(service.transition_path, TRANSITION)
            if transition or damage:
                end_transition(service, stop_guard=not self.by_guard)
            unseen = self.at_boot or bool(self.invocation and not self.args.get("await_ready", True))
            count(service, {"healthy": None if unseen else serving}, change=outcome(service, transition, promoted))
        if aside:
            self.did("damaged transition.json set aside")
        elif transition:
            self.did("transition removed")
        return {
            "live": live,
            "actions": self.actions,
            "started": self.start is not None,
            "invocation_id": self.invocation,
            "cursor": self.cursor,
            "started_boottime": self.start["started_boottime"] if self.start else None,
            "serving": serving,
            "returned": self.returned,
        }

    def bring_back(self, stays: bool) -> None:
        """Make the services that were stopped for the change what they were; not beside ours, if that ``stays``."""
        for other, item in rivals(self.machine, self.exclusive):
            if stays:
                self.did(f"{other.name} is left stopped and disabled")
                continue
            args = {name: item.get(name) for name in ("port", "stop_timeout", "ready_timeout")}
            args.update(service=other.name, before=item, exclusive=[{"service": self.service.name, "gives_way": True}])
            args["await_ready"] = self.args.get("await_ready", True)
            back = Converging(self.session, self.call, args, by_guard=self.by_guard, at_boot=self.at_boot)
            result = back.run()
            self.did(f"{other.name} is as it was: {'; '.join(result['actions']) or 'it had not been touched'}")
            if item.get("was_active"):
                self.returned.append(dict({key: result[key] for key in RETURNED}, service=other.name))

    def is_live(self, state: Json, live: Optional[str]) -> bool:
        """Whether the unit's main process was started from the live release."""
        running = self.service.running(state)
        if not running or not is_up(state):
            return False
        if running["release"] is not None:
            return bool(running["release"] == live)
        # A unit that served before it was adopted does not show its release; its command line does.
        argv = self.service.argv(live)
        return argv is not None and argv == running["argv"]

    def remove_what_is_not_live(self, live: Optional[str], has_live: bool, in_transition: bool) -> None:
        path, state = self.service.candidate_path, self.service.state()
        candidate = os.path.lexists(path) and not os.path.islink(path)
        ours = has_live or candidate or in_transition
        left = not is_down(state) or bool(self.service.pids())
        if ours and left and not self.at_boot and not (has_live and self.is_live(state, live)):
            self.stop(float(self.args.get("drain") or 0.0))
            self.did("stopped what was not live")
        if candidate:
            with self.session.holding():
                remove_file(path)
                self.machine.systemctl("daemon-reload")
                if not has_live:  # nothing starts again, and a failed candidate would stay on record as failed
                    self.machine.systemctl("reset-failed", self.unit, check=False)
            self.did("candidate removed")

    def stop(self, drain: float) -> None:
        patience = float(self.args.get("stop_timeout") or STOP_TIMEOUT)
        stopped = stop_service(self.session, self.call, self.service, self.port, drain, patience)
        if stopped["aborted"]:
            self.did(f"{stopped['aborted']} of {stopped['inflight']} requests in flight cut off")

    def put_in_force(self, want_enabled: bool) -> None:
        """Make the live file the one that systemd uses, and the enablement link right."""
        service, linked = self.service, False
        link, target = service.enable_link, service.live_path
        with self.session.holding():
            rewritten = not self.at_boot and self.possible("the unit", service.restore_unit)
            changed = not self.at_boot and self.possible("the guard's files", install, service)
            if want_enabled or service.is_enabled():
                linked = self.possible("the link that enables it", write_link, link, target)
            state = service.state()
            stale = rewritten or changed or linked or state["NeedDaemonReload"] or state["FragmentPath"] != target
            if stale and not self.at_boot:
                self.machine.systemctl("daemon-reload")
        if rewritten:
            self.did("the unit's text and mode are those of the release again")
        if linked:
            self.did("enabled")
        if not want_enabled and not service.is_enabled():
            self.did("not enabled: left as it is")

    def possible(self, what: str, write: Callable[..., Any], *args: Any) -> bool:
        """Write something that is not needed to bring the live release up: a full disk must not stop the rest."""
        try:
            return bool(write(*args))
        except OSError as error:
            self.did(f"{what} could not be written: {error.strerror}")
            return False

    def bring_up(self, live: Optional[str], want_up: bool) -> bool:
        state = self.service.state()
        up = self.is_live(state, live)
        reasons = self.args.get("restart") or []
        if up and reasons:
            self.refuse_strangers(live)
            self.stop(float(self.args.get("drain") or 0.0))
            self.did("restarted: " + "; ".join(map(str, reasons)))
            up, want_up = False, True
        if up and self.args.get("repair"):
            why = self.hung(live, state)
            if why:
                self.stop(0.0)
                self.did(f"restarted: {why}")
                up, want_up = False, True
        if up:
            self.invocation, self.cursor = state["InvocationID"], self.machine.journal_cursor()
        elif not want_up:
            self.did("not running: left as it is")
            return False
        elif self.at_boot:
            self.machine.systemctl("start", "--no-block", self.unit, check=False)
            self.did("start requested")
            return False
        else:
            refuse_rivals(self.machine, self.exclusive, self.unit)
            if strays(self.service, self.port):
                self.stop(0.0)
                self.did("ended old processes of the service outside its unit")
            self.refuse_strangers(live)
            with self.session.holding():
                self.start = begin_start(self.service, self.service.live_path)
            self.did("started")
            self.cursor = self.start["cursor"]
            self.invocation = await_invocation(self.call, self.service, self.start)
        return bool(self.args.get("await_ready", True)) and self.await_ready(self.patience)

    def hung(self, live: Optional[str], state: Json) -> Optional[str]:
        """Why the live process will not serve without a restart; None while it serves or may still be loading."""
        age = time.time() - (self.service.running(state) or {}).get("started", time.time())
        young = age < self.patience
        answer = ""
        for attempt in range(TRIES if self.port else 0):
            if attempt:
                self.call.sleep(1.0)
            sockets = self.service.listeners(self.port)
            if not sockets:
                if young or not self.patience:
                    return None
                self.refuse_strangers(live)
                return f"it does not listen {age:.0f} s after its start"
            answer = self.health(sockets[0]["address"])
            if answer == "200":
                return None
        # The engine answers 503 from the moment it listens until its warm-up is through.
        warming_up = answer == "503" and young and not self.machine.was_logged(state["InvocationID"], READY_LINE)
        if not answer or warming_up:
            return None
        return f"/health answered {answer}" if answer.isdigit() else f"/health: {answer}"

    def health(self, bound: str, timeout: float = HEALTH_TIMEOUT) -> str:
        """What /health answers: the status as text, or refused, timeout, reset."""
        try:
            return str(self.machine.http(reachable(bound), self.port, "/health", timeout)["status"])
        except Fail as failure:
            return str(failure.detail["state"])

    def refuse_strangers(self, live: Optional[str]) -> None:
        """Raise Fail ``port-taken`` if another program listens where the live release is to listen."""
        strangers = self.strangers(live)
        if strangers:
            self.call.sleep(0.3)  # looked at twice: a socket may just be closing
            strangers = self.strangers(live)
        if strangers:
            who = strangers[0]
            name = who["unit"] or who["comm"] or "another program"
            text = f"port {self.port} of {who['address']} is taken by {name} (pid {who['pid'] or 'unknown'})"
            self.did(text)
            raise Fail("port-taken", f"{text}: {self.unit} was not started", listeners=strangers)

    def strangers(self, live: Optional[str]) -> List[Json]:
        address = self.args.get("address") or self.service.argument(live, "--host")
        pids = self.service.pids() + [item["pid"] for item in strays(self.service, self.port)]
        sockets = self.machine.listeners(self.port, pids) if self.port else []
        return [item for item in sockets if item["pid"] not in pids and collides(item["address"], address)]

    def await_ready(self, seconds: float) -> bool:
        """Whether /health answers 200 from a process of the unit in time. Ends early if the unit fails."""
        deadline = self.machine.boottime() + seconds
        while self.port:
            state = self.service.state()
            if not is_up(state) or state["InvocationID"] != self.invocation:
                self.did("the live unit does not stay up")
                return False
            for listener in self.service.listeners(self.port)[:1]:
                timeout = min(HEALTH_TIMEOUT, max(3.0, deadline - self.machine.boottime()))
                if self.health(listener["address"], timeout) == "200":
                    remember(self.service)
                    self.did("serving")
                    return True
            if self.machine.boottime() >= deadline:
                break
            self.call.sleep(0.25)
        return False

    def mark_manifests(self, live: Optional[str], transition: Optional[Json]) -> None:
        for manifest in self.service.manifests():
            release, state = manifest["release"], manifest.get("state")
            patch: Json = {}
            if release == live:
                promoted = manifest.get("promoted") or time.time()
                patch = {"state": "live", "was_live": True, "promoted": promoted}
            elif state == "live":
                patch = {"state": "superseded"}
            elif transition and release == transition["to"] and state in ("staged", "candidate"):
                patch = {"state": "abandoned"}
            if state != "corrupt" and any(manifest.get(key) != value for key, value in patch.items()):
                self.possible(f"the manifest of {release}", update_manifest, self.service, release, patch)


@operation("converge", audited=True)
def converge(session: Session, args: Json, call: Call) -> Json:
    return Converging(session, call, args).run()
