"""One short generation of our own: the last proof that a server works."""

from __future__ import annotations

import json

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from deployer.errors import AgentError, ChannelLost
from deployer.host.client import HostClient
from deployer.reach import GENERATIONS
from deployer.records.endpoint import Endpoint
from deployer.sglang.server.info import redact

#: Pause before another try, in seconds.
RETRY_SECONDS = 0.5


class _NoAnswer(Exception):
    """No usable answer; another try may help."""


class _Refused(Exception):
    """The server refuses the request; another try does not help."""


def generate_once(client: HostClient, endpoint: Endpoint, *, timeout: float = 600.0) -> tuple[bool, str]:
    """Generate two tokens from the host itself; return whether it worked, and the path used or what went wrong.

    ``timeout`` is in seconds, for one try; the first request may have to compile kernels. There are three tries if
    the connection fails or the server answers 5xx. Nothing is raised for what the server does.
    """
    attempts = Retrying(
        stop=stop_after_attempt(3),
        wait=wait_fixed(RETRY_SECONDS),
        retry=retry_if_exception_type(_NoAnswer),
        reraise=True,
    )
    try:
        return True, attempts(_request, client, endpoint, timeout)
    except (_NoAnswer, _Refused, ChannelLost) as error:
        return False, str(error)


def _request(client: HostClient, endpoint: Endpoint, timeout: float) -> str:
    problem = ""
    for path, body in GENERATIONS.items():
        try:
            answer = client.http(
                "POST",
                path,
                endpoint,
                body=json.dumps(body),
                headers={"Content-Type": "application/json"},
                timeout=timeout,
            )
        except AgentError as error:
            raise _NoAnswer(f"POST {path}: {error.detail.get('state') or error.message}") from error
        if answer.status == 200:
            return path
        problem = redact(f"POST {path}: status {answer.status}: {answer.body[:300]}", endpoint.secrets)
        if answer.status >= 500:
            raise _NoAnswer(problem)
    raise _Refused(problem)
