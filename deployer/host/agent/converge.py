"""Converge: make the host equal to its live release. The one routine behind rollback, recovery and repair."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, List, Optional

from .base import (
    TRANSITION,
    Call,
    Fail,
    Json,
    boottime,
    candidate_path,
    execute,
    live_path,
    read_intact,
    remove_file,
    set_aside,
    systemctl,
    transition_path,
    unit_name,
)
from .lease import Session
from .procs import listeners, unit_pids
from .reading import enable_link, http_exchange, manifests, running_of
from .registry import operation
from .releases import update_manifest
from .stopping import own_listeners, reachable, stop_unit
from .systemd import is_down, is_up, journal_cursor, unit_state
from .transition import await_invocation, begin_start, end_transition, install, live_release, write_link

HEALTH_TIMEOUT = 25.0  # the engine's own limit for a scheduler that does not answer is 20 s
TRIES = 2  # of /health, before a server that listens counts as hung
READY_LINE = "fired up and ready to roll"  # the engine logs it when /health begins to say 200
WILDCARDS = ("0.0.0.0", "::")


class Converging:
    """One run of converge. ``at_boot``: systemd will start the service itself, so nothing is stopped or awaited."""

    def __init__(
        self, session: Session, call: Call, args: Json, *, by_guard: bool = False, at_boot: bool = False
    ):
        self.session, self.call, self.args = session, call, args
        self.by_guard, self.at_boot = by_guard, at_boot
        self.service: str = args["service"]
        self.unit = unit_name(self.service)
        self.actions: List[str] = []
        self.started: Optional[Json] = None
        self.invocation: Optional[str] = None
        self.cursor: Optional[str] = None
        self.port = int(args.get("port") or 0)
        self.patience = float(args.get("ready_timeout") or 0.0)

    def did(self, action: str) -> None:
        self.actions.append(action)
        self.call.emit({"action": action})

    def run(self) -> Json:
        damage: List[str] = []
        transition = read_intact(transition_path(self.service), TRANSITION, damage)
        live = live_release(self.service)
        has_live = os.path.exists(live_path(self.service))
        promoted = bool(transition) and has_live and transition["to"] == live  # type: ignore[index]
        wanted = bool(self.args.get("start")) or promoted
        want_up = wanted or bool(transition and transition.get("was_active"))
        want_enabled = wanted or bool(transition and transition.get("was_enabled"))
        self.remove_what_is_not_live(live, has_live, bool(transition or damage))
        serving = False
        if has_live:
            self.put_in_force(want_enabled)
            serving = self.bring_up(live, want_enabled if self.at_boot else want_up)
        with self.session.holding():
            self.mark_manifests(live if has_live else None, transition)
            aside = set_aside(transition_path(self.service), TRANSITION)
            if transition or damage:
                end_transition(self.service, stop_guard=not self.by_guard)
        if aside:
            self.did("damaged transition.json set aside")
        elif transition:
            self.did("transition removed")
        return {
            "live": live,
            "actions": self.actions,
            "started": self.started is not None,
            "invocation_id": self.invocation,
            "cursor": self.cursor,
            "started_boottime": self.started["started_boottime"] if self.started else None,
            "serving": serving,
        }

    def is_live(self, state: Json, live: Optional[str]) -> bool:
        """Whether the unit's main process was started from the live release."""
        running = running_of(state)
        if not running or not is_up(state):
            return False
        if running["release"] is not None:
            return bool(running["release"] == live)
        # A unit that served before it was adopted does not tell its release; its command line does.
        argv = next((item.get("argv") for item in manifests(self.service) if item["release"] == live), None)
        return argv is not None and argv == running["argv"]

    def remove_what_is_not_live(self, live: Optional[str], has_live: bool, in_transition: bool) -> None:
        candidate = os.path.lexists(candidate_path(self.service)) and not os.path.islink(
            candidate_path(self.service)
        )
        state = unit_state(self.unit)
        ours = has_live or candidate or in_transition
        left = not is_down(state) or bool(unit_pids(self.unit))
        if ours and left and not self.at_boot and not (has_live and self.is_live(state, live)):
            self.stop(float(self.args.get("drain") or 0.0))
            self.did("stopped what was not live")
        if candidate:
            with self.session.holding():
                remove_file(candidate_path(self.service))
                systemctl("daemon-reload")
                if (
                    not has_live
                ):  # nothing will start again: a failed candidate shall not stay on record as failed
                    systemctl("reset-failed", self.unit, check=False)
            self.did("candidate removed")

    def stop(self, drain: float) -> None:
        patience = float(self.args.get("stop_timeout") or 120.0)
        stop_unit(self.session, self.call, self.service, self.port, drain, patience)

    def put_in_force(self, want_enabled: bool) -> None:
        """The live file is what systemd uses, and the enablement link is right."""
        link, target = enable_link(self.unit), live_path(self.service)
        with self.session.holding():
            changed = False if self.at_boot else self.possible("the guard's files", install, self.service)
            linked = False
            if want_enabled or os.path.lexists(link):
                linked = self.possible("the link that enables it", write_link, link, target)
                changed |= linked
            state = unit_state(self.unit)
            if not self.at_boot and (changed or state["NeedDaemonReload"] or state["FragmentPath"] != target):
                systemctl("daemon-reload")
        if linked:
            self.did("enabled")
        if not want_enabled and not os.path.lexists(link):
            self.did("not enabled: left as it is")

    def possible(self, what: str, write: Callable[..., bool], *args: Any) -> bool:
        """Write what is not needed to bring the live release up. A disk that takes nothing must not stop the rest."""
        try:
            return write(*args)
        except OSError as error:
            self.did(f"{what} could not be written: {error.strerror}")
            return False

    def bring_up(self, live: Optional[str], want_up: bool) -> bool:
        state = unit_state(self.unit)
        up = self.is_live(state, live)
        if up and self.args.get("repair"):
            why = self.hung(live, state)
            if why:
                self.stop(0.0)
                self.did(f"restarted: {why}")
                up, want_up = False, True
        if up:
            self.invocation, self.cursor = state["InvocationID"], journal_cursor()
        elif not want_up:
            self.did("not running: left as it is")
            return False
        elif self.at_boot:
            systemctl("start", "--no-block", self.unit, check=False)
            self.did("start asked for")
            return False
        else:
            self.refuse_strangers(live)
            with self.session.holding():
                self.started = begin_start(self.service, live_path(self.service))
            self.did("started")
            self.cursor = self.started["cursor"]
            self.invocation = await_invocation(self.call, self.service, self.started)
        return bool(self.args.get("await_ready", True)) and self.await_ready(self.patience)

    def hung(self, live: Optional[str], state: Json) -> Optional[str]:
        """Why the live process will not serve without a restart; None while it serves or may still be loading."""
        age = time.time() - (running_of(state) or {}).get("started", time.time())
        young = age < self.patience
        said = ""
        for attempt in range(TRIES if self.port else 0):
            if attempt:
                self.call.sleep(1.0)
            found = own_listeners(self.port, unit_pids(self.unit))
            if not found:
                if young or not self.patience:
                    return None
                self.refuse_strangers(live)
                return f"it does not listen {age:.0f} s after its start"
            said = self.health(found[0]["address"], HEALTH_TIMEOUT)
            if said == "200":
                return None
        if not said or (said == "503" and young and not self.was_ready(state["InvocationID"])):
            return None  # the engine says 503 from the moment it listens until its warm-up is through
        return f"/health answered {said}" if said.isdigit() else f"/health: {said}"

    @staticmethod
    def was_ready(invocation: str) -> bool:
        """Whether this start has said already that it was ready."""
        words = ["journalctl", "-q", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={invocation}"]
        return READY_LINE in execute(words, check=False).stdout

    def health(self, address: str, timeout: float) -> str:
        """What /health says: the status as text, or refused, timeout, reset."""
        try:
            return str(http_exchange(reachable(address), self.port, "/health", timeout)["status"])
        except Fail as failure:
            return str(failure.detail["state"])

    def refuse_strangers(self, live: Optional[str]) -> None:
        """Raise Fail("port-taken") when another program listens where the live release is to listen."""
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
        address = self.args.get("address") or self.address_of(live)
        pids = unit_pids(self.unit)
        return [
            item
            for item in (listeners(self.port, pids) if self.port else [])
            if item["pid"] not in pids and (item["address"] in (*WILDCARDS, address) or address in WILDCARDS)
        ]

    def address_of(self, live: Optional[str]) -> Optional[str]:
        """Where the live release listens, as its command line says."""
        argv = next((item.get("argv") for item in manifests(self.service) if item["release"] == live), None)
        words = list(argv or [])
        return words[words.index("--host") + 1] if "--host" in words[:-1] else None

    def await_ready(self, seconds: float) -> bool:
        """Whether /health says 200 from a process of the unit in time. Ends early when the unit fails."""
        deadline = boottime() + seconds
        while self.port:
            state = unit_state(self.unit)
            if not is_up(state) or state["InvocationID"] != self.invocation:
                self.did("the live unit does not stay up")
                return False
            for listener in own_listeners(self.port, unit_pids(self.unit))[:1]:
                timeout = min(HEALTH_TIMEOUT, max(3.0, deadline - boottime()))
                if self.health(listener["address"], timeout) == "200":
                    self.did("serving")
                    return True
            if boottime() >= deadline:
                break
            self.call.sleep(0.25)
        return False

    def mark_manifests(self, live: Optional[str], transition: Optional[Json]) -> None:
        for manifest in manifests(self.service):
            release, state = manifest["release"], manifest.get("state")
            patch: Json = {}
            if release == live:
                patch = {
                    "state": "live",
                    "was_live": True,
                    "promoted": manifest.get("promoted") or time.time(),
                }
            elif state == "live":
                patch = {"state": "superseded"}
            elif transition and release == transition["to"] and state in ("staged", "candidate"):
                patch = {"state": "abandoned"}
            if state != "corrupt" and any(manifest.get(key) != value for key, value in patch.items()):
                self.possible(f"the manifest of {release}", mark, self.service, release, patch)


def mark(service: str, release: str, patch: Json) -> bool:
    return bool(update_manifest(service, release, patch))


@operation("converge", audited=True)
def converge(session: Session, args: Json, call: Call) -> Json:
    return Converging(session, call, args).run()
