"""Converge: make the host equal to its live release. The one routine behind rollback, recovery and repair."""

from __future__ import annotations

import os
import time
from typing import List, Optional

from .base import (
    Call,
    Fail,
    Json,
    boottime,
    candidate_path,
    live_path,
    read_json,
    remove_file,
    systemctl,
    transition_path,
    unit_name,
)
from .lease import Session
from .procs import unit_pids
from .reading import enable_link, http_exchange, manifests, running_of
from .registry import operation
from .releases import update_manifest
from .stopping import own_listeners, reachable, stop_unit
from .systemd import is_down, is_up, unit_state
from .transition import await_invocation, begin_start, end_transition, install, live_release, write_link

HEALTH_TIMEOUT = 25.0


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

    def did(self, action: str) -> None:
        self.actions.append(action)
        self.call.emit({"action": action})

    def run(self) -> Json:
        transition = read_json(transition_path(self.service))
        live = live_release(self.service)
        has_live = os.path.exists(live_path(self.service))
        promoted = bool(transition) and has_live and transition["to"] == live  # type: ignore[index]
        wanted = bool(self.args.get("start")) or promoted
        want_up = wanted or bool(transition and transition.get("was_active"))
        want_enabled = wanted or bool(transition and transition.get("was_enabled"))
        self.remove_what_is_not_live(live, has_live, bool(transition))
        serving = False
        if has_live:
            self.put_in_force(want_enabled)
            serving = self.bring_up(live, want_enabled if self.at_boot else want_up)
        with self.session.holding():
            self.mark_manifests(live if has_live else None, transition)
            if transition:
                end_transition(self.service, stop_guard=not self.by_guard)
        if transition:
            self.did("transition removed")
        return {
            "live": live,
            "actions": self.actions,
            "started": self.started is not None,
            "invocation_id": self.invocation,
            "cursor": self.started["cursor"] if self.started else None,
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
            patience, drain = (
                float(self.args.get("stop_timeout") or 120.0),
                float(self.args.get("drain") or 0.0),
            )
            port = int(self.args.get("port") or 0)
            stop_unit(self.session, self.call, self.service, port, drain, patience)
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

    def put_in_force(self, want_enabled: bool) -> None:
        """The live file is what systemd uses, and the enablement link is right."""
        link, target = enable_link(self.unit), live_path(self.service)
        with self.session.holding():
            changed = False if self.at_boot else install(self.service)
            if want_enabled or os.path.lexists(link):
                linked = write_link(link, target)
                changed |= linked
            else:
                linked = False
            state = unit_state(self.unit)
            if not self.at_boot and (changed or state["NeedDaemonReload"] or state["FragmentPath"] != target):
                systemctl("daemon-reload")
        if linked:
            self.did("enabled")
        if not want_enabled and not os.path.lexists(link):
            self.did("not enabled: left as it is")

    def bring_up(self, live: Optional[str], want_up: bool) -> bool:
        state = unit_state(self.unit)
        if self.is_live(state, live):
            self.invocation = state["InvocationID"]
        elif not want_up:
            self.did("not running: left as it is")
            return False
        elif self.at_boot:
            systemctl("start", "--no-block", self.unit, check=False)
            self.did("start asked for")
            return False
        else:
            with self.session.holding():
                self.started = begin_start(self.service, live_path(self.service))
            self.did("started")
            self.invocation = await_invocation(self.call, self.service, self.started)
        return self.await_ready(float(self.args.get("ready_timeout") or 0.0))

    def await_ready(self, seconds: float) -> bool:
        """Whether /health says 200 from a process of the unit in time. Ends early when the unit fails."""
        deadline, port = boottime() + seconds, int(self.args.get("port") or 0)
        while port:
            state = unit_state(self.unit)
            if not is_up(state) or state["InvocationID"] != self.invocation:
                self.did("the live unit does not stay up")
                return False
            for listener in own_listeners(port, unit_pids(self.unit))[:1]:
                timeout = min(HEALTH_TIMEOUT, max(3.0, deadline - boottime()))
                try:
                    if (
                        http_exchange(reachable(listener["address"]), port, "/health", timeout)["status"]
                        == 200
                    ):
                        self.did("serving")
                        return True
                except Fail:
                    pass  # not yet
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
            if any(manifest.get(key) != value for key, value in patch.items()):
                update_manifest(self.service, release, patch)


@operation("converge", audited=True)
def converge(session: Session, args: Json, call: Call) -> Json:
    return Converging(session, call, args).run()
