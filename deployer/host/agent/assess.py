"""After a boot: whether the live release comes up by itself. If it does not, the last good one is tried, once.

To look, it needs no lease, and it ends as soon as anybody else decides about the service. The try is a change like an
operator's: under the lease, with a transition that the guard watches, and a candidate that is promoted once it works.
That it was tried is written down first, so neither a crash nor the next boot tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, List, Optional

from deployer.reach import GENERATIONS, config_key, key_header, reachable

from .base import Call, Fail, Json
from .converge import Converging
from .exclusion import declared, refuse_rivals
from .files import Shape, read_text
from .gauges import count
from .gpus import await_gpus
from .guard import TAKEN_OVER, OwnOperator, Renewing, guard, left_by_a_guard, log, transition_of
from .lease import audit, holder, lease_view, locked, read_lease
from .machine import Machine, is_down, is_up
from .notify import notify
from .service import Service, unit_release
from .stop import STOP_TIMEOUT, stop_service
from .transition import begin, promote, unit_start

POLL = 1.0
GPUS_LATE = 600.0  # seconds that GPUs have, once the live release has failed without them
LEASE_PATIENCE = 3600.0  # seconds for which a change of another service may keep the host
LEASE = 60.0  # seconds that its lease lives, and then an unproven try of it
GENERATION_TIMEOUT = 50.0  # seconds for one request; shorter than the lease lives
LAST_LINES = 100  # of a run's journal, among which systemd's last words are
STOPPED = "9d1aaa27d60140bd96365438aad20286"  # the MESSAGE_ID by which systemd logs that a unit is down
GENERATION_TRIES = 3  # by a server that is healthy otherwise
#: What came of it: the live release serves, another one does, neither, or somebody else decides.
SETTLED = ("healthy", "fell-back", "failed", "left")
#: The record's ``tried``.
TRIED: Shape = {"from": str, "to": str, "t": (int, float), "why": str}
#: Refusals by which somebody else decides.
OTHERS = ("left", "on-hold", "excluded", *TAKEN_OVER)


def not_ours(service: Service, live: Optional[str]) -> str:
    """Say why the service is for somebody else to decide about; empty if it is not."""
    lease = lease_view(service.machine, read_lease(service.machine)) or {}
    if lease.get("valid") and lease["service"] == service.name:
        return f"it is being changed by {holder(lease)}"
    if transition_of(service) is not None:
        return "a change of it is under way"
    if service.live_release() != live:
        return f"{live} is not the live release any more"
    state = service.state()
    if state["LoadState"] == "masked":
        return "it is masked"
    if not service.is_enabled():
        return "it is not enabled"
    return "it was stopped" if was_stopped(service, state) else ""


def was_stopped(service: Service, state: Json) -> bool:
    """Whether the unit is down because somebody stopped it: systemd logs the job, whatever the server made of it."""
    if not is_down(state):
        return False
    entries: List[Json] = []
    if state["InvocationID"]:
        with contextlib.suppress(Fail):
            service.machine.journal_sync()
        call, run = Call(log), state["InvocationID"]
        entries = list(service.machine.journal_entries(call, service.unit, invocation=run, lines=LAST_LINES))
    systemd = [entry for entry in entries if entry.get("_PID") == "1"]
    if not systemd:  # a start has no time limit, so it was the stop that took too long
        return bool(state["ActiveState"] == "inactive" or state["Result"] == "timeout")
    return any(entry.get("MESSAGE_ID") == STOPPED and entry.get("JOB_TYPE") == "stop" for entry in systemd)


class Waiting(Call):
    """A call that nobody waits for, so it looks seldom."""

    def __init__(self, service: Service) -> None:
        super().__init__(log)
        self.service = service

    def pause(self, seconds: float) -> None:
        self.service.machine.sleep(max(seconds, POLL))


class Looking(Waiting):
    """A call that ends once somebody else decides about the service."""

    def __init__(self, service: Service, live: str) -> None:
        super().__init__(service)
        self.live = live

    def check(self) -> None:
        why = not_ours(self.service, self.live)
        if why:
            raise Fail("left", f"{why}: left alone")


def last_good(service: Service, live: str) -> Optional[str]:
    """The release that the live one replaced, or the next older one in the chain, that was live and can be started."""
    manifests = {item["release"]: item for item in service.manifests()}
    seen, name = {live}, manifests.get(live, {}).get("previous")
    while isinstance(name, str) and name in manifests and name not in seen:
        texts = service.kept_unit(name) and candidate_text(service, name)
        if manifests[name].get("was_live") and texts and service.port(name):
            return name
        seen.add(name)
        name = manifests[name].get("previous")
    return None


def candidate_text(service: Service, release: str) -> str:
    text = read_text(os.path.join(service.release_dir(release), "unit.candidate")) or ""
    return text if unit_release(text) == release else ""


def generation_fails(service: Service, release: str, address: str, port: int) -> str:
    """Have the server generate two tokens; say what is wrong if it does not."""
    wrong = ""
    key = config_key(read_text(os.path.join(service.release_dir(release), "config.yaml")) or "")
    headers = dict(key_header(key), **{"Content-Type": "application/json"})
    for path, body in GENERATIONS.items():
        try:
            answer = service.machine.http(address, port, path, GENERATION_TIMEOUT, "POST", json.dumps(body), headers)
        except Fail as failure:
            return f"POST {path}: {failure.message}"
        if answer["status"] == 200:
            return ""
        wrong = f"POST {path}: status {answer['status']}"
        if answer["status"] >= 500:
            break
    return wrong


class Assessment:
    """One boot of one service. Its record on disk says how far it has come, should another process go on with it."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.service, self.session = machine, Service(machine, name), OwnOperator(machine)
        self.session.owner = self.session.named("assess")
        record = self.service.last_boot() or {}
        tried = record.get("tried") or {}
        self.tried: Optional[Json] = tried if all(isinstance(tried.get(key), TRIED[key]) for key in TRIED) else None
        self.outcome = record.get("outcome") if record.get("boot_id") == machine.boot_id else None
        self.live = self.service.live_release()

    def run(self) -> None:
        if self.outcome in SETTLED:
            return
        try:
            if self.outcome == "trying" and self.tried:
                self.go_on(self.tried)
                return
            left = transition_of(self.service)
            if left is not None and left.get("boot_id") != self.machine.boot_id:
                guard(self.machine, self.service.name)  # recovery could not tidy it
                self.live = self.service.live_release()
            if self.live is not None:
                self.look(self.live)
        except Fail as failure:
            self.conclude("left" if failure.code in OTHERS else "failed", failure.message)
        except OSError as error:
            self.conclude("failed", str(error))
        finally:
            self.session.finish("released")

    def look(self, live: str) -> None:
        """Wait for the live release; where it does not come up, try another."""
        looking = Looking(self.service, live)
        looking.check()
        if not self.service.port(live):
            raise Fail("left", f"the command line of {live} does not say where it listens: left alone")
        self.note("waiting", f"waiting for {live} after the boot")
        wrong = self.wait(looking, live)
        wanted = self.service.gpus(live)
        if wrong and await_gpus(self.machine, wanted, 0.0, looking.sleep):
            lacking = await_gpus(self.machine, wanted, GPUS_LATE, looking.sleep)
            if lacking:
                raise Fail("no-gpus", f"{live} did not come up ({wrong}): {lacking}; no other release was tried")
            wrong = self.start_again(looking, live, wrong)
        if not wrong:
            if self.tried and self.tried["from"] == live:
                self.tried = None
            self.conclude("healthy", f"{live} serves, {self.machine.boottime():.0f} s after the boot")
            return
        self.fall_back(live, wrong)

    def wait(self, call: Call, release: str, since: Optional[float] = None) -> str:
        """Wait until the unit serves and generates; say what is wrong if it does not, in the time it has."""
        service, seconds, tries = self.service, self.service.start_seconds(release), GENERATION_TRIES
        deadline = (self.machine.boottime() if since is None else since) + seconds
        waiting = Converging(self.session, call, {"service": service.name, "port": service.port(release)})
        while True:
            state = service.state()
            left = deadline - self.machine.boottime()
            waiting.invocation = state["InvocationID"]
            if is_up(state) and waiting.await_ready(max(0.0, left)):
                listener = service.listeners(waiting.port)[:1]
                address = reachable(listener[0]["address"]) if listener else "127.0.0.1"
                wrong = generation_fails(service, release, address, waiting.port)
                tries -= 1
                if not wrong or not tries:
                    return wrong
            if is_down(state):
                call.check()
                return f"its unit is {state['ActiveState']} ({state['Result']})"
            if self.machine.boottime() >= deadline:
                return f"no answer of /health within {seconds:g} s"
            call.sleep(POLL)

    def acquire(self, call: Call, why: str) -> None:
        """Take the lease, as ``why`` says; wait while another service of the host is being changed."""
        service, deadline = self.service, self.machine.boottime() + LEASE_PATIENCE
        while True:
            raw = read_lease(self.machine)
            lease = lease_view(self.machine, raw) or {}
            left = raw if raw and lease.get("valid") and left_by_a_guard(service, raw) else None
            try:
                self.session.take(service, "assess", {"lease": LEASE}, why, left, obeys_hold=True)
                return
            except Fail as failure:
                if failure.code != "lease-held" or self.machine.boottime() >= deadline:
                    raise Fail(failure.code, f"{why}; {failure.message}") from failure
            call.sleep(POLL)

    def start_again(self, call: Call, live: str, wrong: str) -> str:
        """Start the live release again, now that its GPUs are there; say what is wrong if it still does not come up."""
        self.acquire(call, f"{live} did not come up ({wrong}), and its GPUs came late")
        args: Json = {"service": self.service.name, "port": self.service.port(), "start": True}
        args.update(restart=["the GPUs came late"], await_ready=False)
        Converging(self.session, Renewing(self.session), args).run()
        self.session.finish("released")
        return self.wait(call, live)

    def spent(self, live: str) -> bool:
        """Whether a try was made from or to this release, and nobody has promoted it since."""
        if self.tried is None or live not in (self.tried["from"], self.tried["to"]):
            return False
        promoted = self.service.recorded(live, "promoted")
        return not isinstance(promoted, (int, float)) or float(promoted) <= float(self.tried["t"])

    def fall_back(self, live: str, wrong: str) -> None:
        """Try the last good release in the place of the live one."""
        service = self.service
        if self.tried and self.spent(live):
            before = f"{self.tried['to']} was tried in the place of {self.tried['from']} after an earlier boot"
            raise Fail("spent", f"{live} did not come up ({wrong}); {before}, so nothing more is tried")
        to = last_good(service, live)
        if to is None:
            raise Fail("nothing-else", f"{live} did not come up ({wrong}), and there is no earlier release to try")
        refuse_rivals(self.machine, declared(candidate_text(service, to)), service.unit)
        looking = Looking(service, live)
        self.acquire(looking, f"{live} did not come up ({wrong})")
        tried: Json = {"from": live, "to": to, "t": time.time(), "why": wrong, "result": "trying"}
        self.tried = tried
        self.note("trying", f"{live} did not come up ({wrong}); trying {to}")
        audit(self.session, "assess.try", {"service": service.name, **tried}, "begun")
        self.carry_out(tried)

    def go_on(self, tried: Json) -> None:
        """Carry on after a process that died in the try, or see what the guard has made of it."""
        self.acquire(Waiting(self.service), "the assessment was interrupted")
        transition = transition_of(self.service)
        if transition is None:
            went = self.service.live_release() == tried["to"]
            self.settle(tried, "" if went else "it was interrupted, and the guard went back")
        elif transition["to"] != tried["to"]:
            raise Fail("left", "a change of it is under way: left alone")
        else:
            self.carry_out(tried, "the guard had begun to go back" if transition.get("step") == "restore" else "")

    def carry_out(self, tried: Json, wrong: str = "") -> None:
        """The try, from wherever it stands, under the lease; if something is ``wrong`` already, only its end."""
        service, session, call = self.service, self.session, Renewing(self.session)
        live, to, name = tried["from"], tried["to"], self.service.name
        port, seconds = service.port(to), service.start_seconds(to)
        args: Json = {"service": name, "port": port, "stop_timeout": STOP_TIMEOUT, "ready_timeout": seconds}
        if service.live_release() != to and not wrong:
            record: Json = {"from": live, "to": to, "step": "stop", "proven": True, **args}
            # Nothing of the live release runs that would be worth starting again.
            record.update(grace=LEASE, lease=LEASE, was_active=False, was_enabled=True)
            begin(session, {"service": name, "transition": record}, call)
            try:
                started = self.start(call, live, to)
                wrong = self.wait(call, to, since=started["started_boottime"])
                if not wrong:
                    expect = {"live": live, "invocation_id": started["invocation_id"]}
                    text = service.kept_unit(to)
                    promote(session, {"service": name, "release": to, "text": text, "expect": expect}, call)
            except Fail as failure:
                if failure.code == "lease-lost":
                    raise
                wrong = failure.message
        Converging(session, call, args).run()
        self.settle(tried, wrong)

    def start(self, call: Call, live: str, to: str) -> Json:
        """Stop what is left of the live release and start the other as a candidate, unless it runs already."""
        service, transition = self.service, transition_of(self.service) or {}
        state = service.state()
        runs = (service.running(state) or {}).get("release") == to and is_up(state)
        if runs and transition.get("invocation_id") == state["InvocationID"]:
            return transition
        if not is_down(state) or service.pids():
            stop_service(self.session, call, service, service.port(live), 0.0, STOP_TIMEOUT)
        args: Json = {"service": service.name, "release": to, "text": candidate_text(service, to)}
        return unit_start(self.session, args, call)

    def settle(self, tried: Json, wrong: str) -> None:
        self.tried = dict(tried, result=wrong or "live")
        first = f"{tried['from']} did not come up after the boot ({tried['why']})"
        if wrong:
            self.conclude("failed", f"{first}, nor did {tried['to']} ({wrong}); nothing more is tried")
        else:
            self.conclude("fell-back", f"{first}; {tried['to']}, the last good one, is live in its place")

    def note(self, outcome: str, text: str) -> Json:
        """Write down how far it has come. A try is not made if that cannot be written."""
        live, now = self.service.live_release() or "", round(time.time(), 3)
        record: Json = {"t": now, "boot_id": self.machine.boot_id, "release": live, "outcome": outcome, "text": text}
        record["tried"] = self.tried
        log({"outcome": outcome, "text": repr(text)})
        try:
            self.machine.write_json(self.service.boot_path, record)
        except OSError:
            if outcome == "trying":
                raise
        return record

    def conclude(self, outcome: str, text: str) -> None:
        """The assessment is over: write down what came of it, on disk and in the audit."""
        record: Any = self.note(outcome, text)
        args = {"service": self.service.name, "release": record["release"], "tried": self.tried}
        audit(self.session, f"assess.{outcome}", args, text)
        self.tell(outcome, text)

    def tell(self, outcome: str, text: str) -> None:
        """Count what came of it, and have others told if the live release did not come up."""
        service, serving = self.service, {"healthy": True, "fell-back": True, "failed": False}.get(outcome)
        did = {"fell-back": "assess try ok", "failed": "assess try failed"}.get(outcome)
        with contextlib.suppress(Fail, OSError), locked(self.machine):
            count(service, {"healthy": serving}, deed=did)
        if did:
            before = self.tried["from"] if self.tried and outcome == "fell-back" else None
            notify(service, "assess", text, serving, previous=before, incident=f"{self.machine.boot_id} {text}")


def assess(machine: Machine, name: str) -> int:
    """Look after a boot whether the live release comes up; do nothing if that was done since the boot."""
    Assessment(machine, name).run()
    return 0
