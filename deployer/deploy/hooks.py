"""Run the hooks of a moment on the operator's machine, and call the webhook."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress

from deployer.config.hooks import Hooks, Webhook
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import DeployerError
from deployer.records.hook import HookFacts
from deployer.records.release import Release

ATTEMPTS = 3
PAUSE = 0.5  # seconds before the second attempt; doubled for the third
_SHOWN = 300  # characters of a program's output that a message repeats


def facts_of(
    session: Session,
    event: str,
    release: Release | None,
    previous: str | None,
    *,
    reason: str | None = None,
    serving: bool | None = None,
) -> HookFacts:
    """Return the facts of a moment of the session's change."""
    return HookFacts(
        event=event,
        service=session.service.name,
        host=session.host_config.name,
        release=release.release if release else None,
        profile=release.profile if release else None,
        previous=previous,
        time=time.time(),
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        reason=reason,
        serving=serving,
    )


def run_hooks(hooks: Hooks, facts: HookFacts, reporter: Reporter) -> str | None:
    """Run the program of a moment, then call the webhook; return why the program failed, None if it did not.

    A webhook that fails is reported and is never a reason to refuse.
    """
    complaint = _run(hooks, facts)
    if hooks.webhook is not None and facts.event in hooks.webhook.events:
        problem = call_webhook(hooks.webhook, facts)
        if problem:
            reporter.warn(f"The webhook was not called ({facts.event}): {problem}")
    return complaint


def report_hooks(hooks: Hooks, facts: HookFacts, reporter: Reporter) -> None:
    """Run the hooks of a moment at which nothing can be refused: what fails is reported."""
    if complaint := run_hooks(hooks, facts, reporter):
        reporter.warn(complaint)


def _run(hooks: Hooks, facts: HookFacts) -> str | None:
    command = next((command for event, command in hooks.programs.items() if event == facts.event), None)
    if command is None:
        return None
    what = f"the hook {facts.event} ({command[0]})"
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **facts.environment()},
            start_new_session=True,
        )
    except OSError as error:
        return f"{what} cannot be run: {error.strerror}"
    with child:
        try:
            output, _ = child.communicate(json.dumps(facts.as_json()).encode(), timeout=hooks.timeout)
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"{what} did not end within {hooks.timeout:g} s"
            raise
    if child.returncode == 0:
        return None
    words = " ".join(output.decode(errors="replace").split())[-_SHOWN:]
    return f"{what} ended with status {child.returncode}" + (f": {words}" if words else "")


def call_webhook(webhook: Webhook, facts: HookFacts) -> str | None:
    """Post the facts, with further attempts if the receiver fails; return what went wrong, None if nothing did."""
    import httpx
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    def passing(error: BaseException) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.status_code >= 500 or error.response.status_code == 429
        return isinstance(error, httpx.TransportError)

    def post() -> None:
        httpx.post(url, json=body, headers=headers, timeout=webhook.timeout).raise_for_status()

    body = {"text": facts.sentence()} if webhook.format == "slack" else facts.as_json()
    try:
        url = webhook.url_secret.resolve() if webhook.url_secret else str(webhook.url)
        headers = {webhook.header: webhook.secret.resolve()} if webhook.secret else {}
        retrying = Retrying(
            retry=retry_if_exception(passing),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=PAUSE),
            reraise=True,
        )
        retrying(post)
    except httpx.HTTPStatusError as error:
        return f"it answered {error.response.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return type(error).__name__  # its text may repeat the URL, which can be a secret
    except DeployerError as error:
        return error.message
    return None
