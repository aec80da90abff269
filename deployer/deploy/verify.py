"""Verification of a server that answers: is it the one we started, does it run with what the profile requested, and
does the address that clients use lead to it?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from deployer.errors import AgentError, ConfigError
from deployer.host.client import HostClient
from deployer.reach import serves
from deployer.records.effect import ArgumentInEffect, InEffect
from deployer.records.endpoint import Endpoint
from deployer.records.release import Release
from deployer.sglang.flags.versions import defaults
from deployer.sglang.server.effect import computed
from deployer.sglang.server.info import aliases, compare, defaulted, effective_arguments, redact

if TYPE_CHECKING:
    import httpx

#: Seconds that the advertised address may take, all tries together.
ADVERTISED_SECONDS = 15.0
#: Pause between them, in seconds.
RETRY_SECONDS = 0.5
#: Levels of JSON in an answer; SGLang's have five.
_NESTING = 64


@dataclass(frozen=True)
class Verification:
    """The result of verification. ``problems`` are sentences; it is ``ok`` if there are none.

    ``effective`` is the whole configuration in force, ``in_effect`` the comparison with what was requested, both
    without secrets. ``allowed`` are the arguments that may differ.
    """

    problems: tuple[str, ...] = ()
    effective: dict[str, Any] = field(default_factory=dict)
    in_effect: InEffect = field(default_factory=InEffect)
    allowed: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        """Whether the server is what it should be."""
        return not self.problems

    @property
    def refused(self) -> tuple[ArgumentInEffect, ...]:
        """The differences that the profile does not allow."""
        changed = self.in_effect.changed
        return tuple(check for check in changed if not self.allowed.intersection(aliases(check.argument)))

    @property
    def remedy(self) -> str:
        """What to do about the problems."""
        if not self.refused:
            return "see what answers on the address: `deployer status`, `deployer logs`"
        names = ", ".join(f'"{check.argument}"' for check in self.refused)
        return (
            "request in the profile what SGLang runs with, or accept the change there:\n"
            f"  [verify]\n  allow_changed = [{names}]"
        )

    def sentence(self) -> str:
        """The result in one line."""
        effect = self.in_effect
        text = f"our process answers; {effect.equal} requested arguments are in effect"
        if effect.changed:
            text += f", {len(effect.changed)} changed as the profile allows"
        return text + (f", {len(effect.missing)} not shown by this version" if effect.missing else "")

    def notes(self) -> list[str]:
        """What the operator should know beside the result: allowed changes, and what SGLang computed."""
        effect = self.in_effect
        notes = [_difference(check) for check in effect.changed]
        if effect.missing:
            notes.append(f"not shown by this version of SGLang: {', '.join(effect.missing)}")
        if effect.computed is not None and (values := effect.computed.sentences()):
            notes.append(f"in effect: {'; '.join(values)}")
        return notes


def verify(
    client: HostClient,
    release: Release,
    endpoint: Endpoint,
    invocation_id: str,
    *,
    advertised: str | None = None,
    learned: Path | None = None,
    log: Callable[[], Sequence[str]] = tuple,
    transport: httpx.BaseTransport | None = None,
) -> Verification:
    """Check a server that has answered `Wait`. Every problem is reported, not the first only.

    ``invocation_id`` is our start of the unit; ``advertised`` the URL that clients use: it is asked from here, within
    `ADVERTISED_SECONDS`. ``learned`` is the folder of the site's flag tables, for the version's defaults, and ``log``
    reads the log of the start, for the reasons. ``transport`` replaces the network. Raise HostError if the host
    cannot be asked.
    """
    problems = _identity(client, endpoint, invocation_id)
    info, trouble = server_info(client, endpoint)
    verification = Verification()
    if info is None:
        problems.append(redact(trouble, endpoint.secrets))
    else:
        verification = in_effect(release, info, secrets=endpoint.secrets, learned=learned, lines=log())
        problems += [_difference(check) for check in verification.refused]
    if advertised:
        models = _models(client, endpoint)
        answers = _advertised(advertised, models, endpoint, transport)
        problems += [redact(text, endpoint.secrets) for text in answers]
    return replace(verification, problems=tuple(problems))


def in_effect(
    release: Release,
    info: Mapping[str, Any],
    *,
    secrets: Sequence[str] = (),
    learned: Path | None = None,
    lines: Sequence[str] = (),
) -> Verification:
    """Compare what a server says of itself, and its log, with what its release requested. Pure."""
    requested, running = release.requested.arguments, release.sglang or info.get("version")
    known: Mapping[str, Any] = {}
    if running:
        with suppress(ConfigError):  # of a version that is not known at all
            known = defaults(str(running), learned)
    checks = compare(requested, info, secrets, lines)
    return Verification(
        effective=redact(effective_arguments(info), secrets),
        in_effect=InEffect(
            computed=computed(info, lines),
            changed=tuple(check for check in checks if check.verdict == "changed"),
            missing=tuple(check.argument for check in checks if check.verdict == "missing"),
            equal=sum(check.verdict == "equal" for check in checks),
            arguments=(*checks, *defaulted(requested, info, known, secrets, lines)),
        ),
        allowed=frozenset(release.requested.allow_changed),
    )


def _difference(check: ArgumentInEffect) -> str:
    why = f" (SGLang: {check.reason})" if check.reason else ""
    return (
        f"{check.argument} is {check.effective!r} in the running server; the profile requested {check.requested!r}{why}"
    )


def _identity(client: HostClient, endpoint: Endpoint, invocation_id: str) -> list[str]:
    """Return why the process behind the port does not belong to our start; empty if it does."""
    state = client.observe({endpoint.service: endpoint.port}).services[endpoint.service]
    name = endpoint.unit
    problems = []
    if state.unit.active != "active":
        problems.append(f"{name} is {state.unit.active} ({state.unit.result or 'no result'}), not active")
    if state.unit.invocation_id != invocation_id:
        problems.append(f"{name} was started again since: another invocation is running")
    listeners = [
        item for item in state.listeners if item.port == endpoint.port and serves(item.address, endpoint.address)
    ]
    if not listeners:
        problems.append(f"nothing listens on {endpoint.address}:{endpoint.port}")
    for listener in listeners:
        if listener.unit != name:
            owner = listener.unit or f"{listener.comm or 'a process'} (pid {listener.pid})"
            problems.append(f"{listener.address}:{endpoint.port} is served by {owner}, not by {name}")
    return problems


def server_info(client: HostClient, endpoint: Endpoint, *, timeout: float = 30.0) -> tuple[dict[str, Any] | None, str]:
    """Return the server's own account of itself (older versions have it at another path), or why there is none.

    ``timeout``: seconds for each path.
    """
    trouble = "the server does not say what it runs with"
    for path in ("/server_info", "/get_server_info"):
        try:
            answer = client.http("GET", path, endpoint, timeout=timeout)
        except AgentError as error:
            if error.code != "http":
                raise
            return None, f"GET {path}: {error.message}"
        trouble = f"GET {path}: status {answer.status}: {answer.body[:200]}"
        if answer.status == 200:
            info = _json(answer.body)
            if isinstance(info, dict):
                return info, ""
            return None, f"GET {path}: not a JSON object: {answer.body[:200]}"
        if answer.status != 404:
            break
    return None, trouble


def _models(client: HostClient, endpoint: Endpoint) -> set[str] | None:
    try:
        answer = client.http("GET", "/v1/models", endpoint, timeout=30.0)
    except AgentError:
        return None
    return _model_names(answer.body) if answer.status == 200 else None


def _advertised(
    url: str, models: set[str] | None, endpoint: Endpoint, transport: httpx.BaseTransport | None
) -> list[str]:
    """Return why the address that clients use does not lead to this server; empty if it does."""
    import httpx  # a tenth of the program's start, and only those who advertise an address need it

    def may_pass(error: BaseException) -> bool:
        return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)

    base = url.rstrip("/")
    path = f"{base}/models" if base.endswith("/v1") else f"{base}/v1/models"
    attempts = Retrying(
        stop=stop_after_delay(ADVERTISED_SECONDS / 2),
        wait=wait_fixed(RETRY_SECONDS),
        retry=retry_if_exception(may_pass),
        reraise=True,
    )
    try:
        with httpx.Client(transport=transport, timeout=ADVERTISED_SECONDS / 2, headers=endpoint.headers) as session:
            answer = attempts(session.get, path)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return [f"the advertised address {url} does not answer from here: {type(error).__name__}: {error}"]
    if answer.status_code != 200:
        return [f"the advertised address answers {path} with status {answer.status_code}, not 200"]
    shown = _model_names(answer.text)
    if shown is None:
        return [f"the advertised address answers {path}, but not as an SGLang server does"]
    if models is not None and shown != models:
        return [f"the advertised address leads to another server: it serves {sorted(shown)}, ours {sorted(models)}"]
    return []


def _model_names(body: str) -> set[str] | None:
    data = _json(body)
    items = data.get("data") if isinstance(data, dict) else None
    if not isinstance(items, list):
        return None
    return {str(item["id"]) for item in items if isinstance(item, dict) and "id" in item}


def _json(body: str) -> Any:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if _shallow(data) else None


def _shallow(value: Any, levels: int = _NESTING) -> bool:
    """Whether what a server answers is nested as an account of itself is, and not without end."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(item, levels - 1) for item in items)
