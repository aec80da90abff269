"""Run the hooks of a moment on the operator's machine, and call the webhook."""

from __future__ import annotations

import getpass
import socket
import time

from deployer.config.hooks import Hooks, Webhook
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import AgentError, ConfigError, DeployerError
from deployer.notice import body, run_program, try_again
from deployer.records.hook import HookFacts, HostHooks, HostWebhook
from deployer.records.release import Release

ATTEMPTS = 3
PAUSE = 0.5  # seconds before the second attempt; doubled for the third


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


def keep_on_host(session: Session, reporter: Reporter) -> None:
    """Have the host know whom it tells what it does by itself, and where it writes metrics, by the inventory as it is.

    What fails is reported, and no reason to refuse: the host keeps what it had.
    """
    try:
        kept = session.client.hooks_set(session.service.name, hooks_of_host(session))
    except (AgentError, ConfigError) as error:
        reporter.warn(f"The host keeps the hooks that it had: {error.message}")
        return
    if kept.problem:
        reporter.warn(f"The host writes no metrics: {kept.problem}")


def hooks_of_host(session: Session) -> HostHooks | None:
    """Return what the host tells by itself and to whom, secrets included; None if it is to tell nobody."""
    hooks, folder, webhook = session.service.hooks, session.host_config.metrics_dir, None
    if hooks.webhook is not None and "host" in hooks.webhook.sides:
        url, headers = resolved(hooks.webhook)
        called = hooks.webhook
        webhook = HostWebhook(url, headers, tuple(called.events), called.format, called.timeout)
    if not hooks.host_programs and webhook is None and folder is None:
        return None
    programs = {str(event): tuple(command) for event, command in hooks.host_programs.items()}
    return HostHooks(session.host_config.name, programs, hooks.timeout, webhook, folder)


def run_hooks(hooks: Hooks, facts: HookFacts, reporter: Reporter) -> str | None:
    """Run the program of a moment, then call the webhook; return why the program failed, None if it did not.

    A webhook that fails is reported and is never a reason to refuse.
    """
    command = next((command for event, command in hooks.programs.items() if event == facts.event), None)
    complaint = run_program(command, facts.as_json(), hooks.timeout) if command else None
    called = hooks.webhook
    if called is not None and "operator" in called.sides and facts.event in called.events:
        problem = call_webhook(called, facts)
        if problem:
            reporter.warn(f"The webhook was not called ({facts.event}): {problem}")
    return complaint


def report_hooks(hooks: Hooks, facts: HookFacts, reporter: Reporter) -> None:
    """Run the hooks of a moment at which nothing can be refused: what fails is reported."""
    if complaint := run_hooks(hooks, facts, reporter):
        reporter.warn(complaint)


def resolved(webhook: Webhook) -> tuple[str, dict[str, str]]:
    """Return the webhook's URL and headers, secrets included. Raise ConfigError if one cannot be read."""
    url = webhook.url_secret.resolve() if webhook.url_secret else str(webhook.url)
    return url, {webhook.header: webhook.secret.resolve()} if webhook.secret else {}


def call_webhook(webhook: Webhook, facts: HookFacts) -> str | None:
    """Post the facts, with further attempts if the receiver fails; return what went wrong, None if nothing did."""
    import httpx
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    def passing(error: BaseException) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            return try_again(error.response.status_code)
        return isinstance(error, httpx.TransportError)

    def post() -> None:
        httpx.post(
            url, json=body(facts.as_json(), webhook.format), headers=headers, timeout=webhook.timeout
        ).raise_for_status()

    try:
        url, headers = resolved(webhook)
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
