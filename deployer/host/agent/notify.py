"""Tells an admin's program on the host, and a webhook, what the guard, recovery or assessment did.

`notify` leaves a notice in memory and starts the notifier, a unit of its own that waits for the network: a receiver
that is slow, or a boot that has no network yet, holds nobody up. What is told, and to whom, is in ``hooks.json``. It
may hold secrets, so only root can read it, and it travels in an operation whose arguments are not audited.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Iterator, List, Optional

from deployer.notice import body, sentence, try_again

from .base import SCHEMA, Call, Fail, Json, operation
from .files import read_intact, remove_file
from .gauges import remove_metrics, write_metrics
from .lease import Session, audit
from .machine import Machine
from .service import Service
from .transition import own_program, own_settings

ATTEMPTS = 6  # at a webhook
PAUSE = 2.0  # seconds before the second attempt; doubled for each that follows
LONGEST = 3600  # seconds that a notifier may take for all it has to do
OWNER = {"user": "root", "host": "localhost", "command": "notify"}


@operation("hooks.set")
def set_hooks(session: Session, args: Json, call: Call) -> Json:
    """Keep what the host tells others and where it writes metrics, or (null) that it does neither."""
    service, hooks = Service(session.machine, args["service"]), args.get("hooks")
    path = service.hooks_path
    with session.holding():
        before = service.hooks()
        if hooks is None:
            changed = remove_file(path)
        else:
            os.makedirs(service.folder, mode=0o755, exist_ok=True)
            changed = before != dict(hooks, schema=SCHEMA) or os.stat(path).st_mode & 0o077 != 0
            if changed:
                session.machine.write_json(path, hooks, 0o600)
        remove_metrics(service, before)
        problem = write_metrics(service)
    if changed:
        kept = hooks or {}
        shown: Json = {"service": service.name, "programs": sorted(kept.get("programs") or ())}
        shown.update(webhook=bool(kept.get("webhook")), metrics_dir=kept.get("metrics_dir"))
        audit(session, "hooks.set", shown, "ok")
    return {"changed": changed, "problem": problem}


def outbox(service: Service) -> str:
    return os.path.join(service.machine.volatile_dir, f"notices-{service.name}")


def notify(
    service: Service,
    by: str,
    reason: str,
    serving: Optional[bool],
    *,
    event: str = "after_restore",
    previous: Optional[str] = None,
    incident: str = "",
) -> None:
    """Have others told what was done about the live release, unless that was told of the same ``incident`` already.

    ``by``: guard or recover; ``serving``: whether the live release is healthy, None if that cannot be known;
    ``previous``: the release that it comes back from, or replaces; ``incident``: what happened with what result, in any
    words (the reason's, if there are none). Nothing is waited for, and no failure stops the
    caller. Not to be called under the lock.
    """
    with contextlib.suppress(Fail, OSError):
        hooks = service.hooks()
        if hooks is None or not wanted(hooks, event):
            return
        machine, live = service.machine, service.live_release()
        manifests = service.manifests()
        facts = {
            "event": event,
            "service": service.name,
            "host": hooks["host"],
            "release": live,
            "profile": next((item.get("profile") for item in manifests if item["release"] == live), None),
            "previous": previous,
            "by": f"{by}@{hooks['host']}",
            "reason": reason,
            "serving": serving,
            "side": "host",
        }
        told = {"incident": incident or reason, "event": event, "release": live, "serving": serving}
        folder, now = outbox(service), time.time()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        last = os.path.join(folder, "last")
        if (read_intact(last, {"told": dict}) or {}).get("told") == told:
            return
        machine.write_json(os.path.join(folder, f"{now:.6f}.json"), dict(facts, time=round(now, 3)), 0o600)
        machine.write_json(last, {"told": told}, 0o600)
        start_notifier(machine, service.name, f"{now:.6f}".replace(".", "-"))


def wanted(hooks: Json, event: str) -> bool:
    return event in hooks["programs"] or event in (hooks["webhook"] or {}).get("events", ())


def start_notifier(machine: Machine, name: str, mark: str) -> None:
    """Run `deliver` as a unit of its own, which is gone when it has ended."""
    properties = ["After=network-online.target", "Wants=network-online.target", "IgnoreOnIsolate=yes"]
    properties.append(f"RuntimeMaxSec={LONGEST}")
    argv = ["systemd-run", "--no-block", "--collect", "--quiet", f"--unit=deployer-notify-{name}-{mark}"]
    argv.append(f"--description=deployer: tell others what was done about service {name}")
    argv += ["--property=" + text for text in properties] + ["--setenv=" + text for text in own_settings()]
    machine.ask_systemd([*argv, *own_program(machine), "notify", name])


def waiting(service: Service) -> Iterator[Json]:
    """The notices that nobody has told yet, each once whoever asks, the oldest first."""
    folder = outbox(service)
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
        path = os.path.join(folder, name)
        if name.endswith(".json"):
            with contextlib.suppress(FileNotFoundError):  # another notifier has it
                os.rename(path, path + ".taken")
                facts = read_intact(path + ".taken", {"event": str})
                remove_file(path + ".taken")
                if facts:
                    yield facts


def deliver(machine: Machine, name: str) -> int:
    """The notifier: tell others of all notices that wait. What fails is in the audit and in its unit's journal."""
    service, session = Service(machine, name), Session(machine)
    session.owner = OWNER
    for facts in waiting(service):
        problems = told_of(machine, service.hooks(), facts)
        result = "; ".join(problems) or "ok"
        print(f"{sentence(facts)} [{result}]", flush=True)
        audit(session, "notify", {"service": name, "event": facts["event"], "by": facts["by"]}, result)
    return 0


def told_of(machine: Machine, hooks: Optional[Json], facts: Json) -> List[str]:
    """Tell everybody who is to know; return what went wrong."""
    if hooks is None:
        return ["the inventory has no hooks for the host any more"]
    problems: List[Optional[str]] = []
    command, webhook = hooks["programs"].get(facts["event"]), hooks["webhook"]
    if command:
        problems.append(machine.run_hook(command, facts, float(hooks["timeout"])))
    if webhook and facts["event"] in webhook["events"]:
        problem = call_webhook(machine, webhook, facts)
        problems.append(problem and f"the webhook was not called: {problem}")
    return [problem for problem in problems if problem]


def call_webhook(machine: Machine, webhook: Json, facts: Json) -> Optional[str]:
    """Post the facts, with further attempts if the receiver fails; return what went wrong, None if nothing did."""
    problem: Any = None
    for attempt in range(ATTEMPTS):
        if attempt:
            machine.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            form, timeout = body(facts, webhook["format"]), float(webhook["timeout"])
            status = machine.post(webhook["url"], form, webhook["headers"], timeout)
        except Fail as failure:
            problem = failure.message
            continue
        if 200 <= status < 300:
            return None
        problem = f"it answered {status}"
        if not try_again(status):
            break
    return str(problem)
