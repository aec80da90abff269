"""One short generation of our own: the last proof that a server works."""

from __future__ import annotations

import json

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from deployer.errors import AgentError, ChannelLost
from deployer.host.protocol import Host, Json
from deployer.sglang.server.info import redact

#: Pause before another try, in seconds.
RETRY_SECONDS = 0.5

_BODIES: dict[str, Json] = {
    "/generate": {"text": "Hello", "sampling_params": {"max_new_tokens": 2, "temperature": 0}},
    "/v1/completions": {"model": "default", "prompt": "Hello", "max_tokens": 2, "temperature": 0},
}


class _NoAnswer(Exception):
    """No usable answer; another try may help."""


class _Refused(Exception):
    """The server refuses the request; another try does not help."""


def generate_once(
    host: Host, address: str, port: int, *, api_key: str | None = None, timeout: float = 600.0
) -> tuple[bool, str]:
    """Generate two tokens on the host itself: whether that worked, and the path used or what went wrong.

    ``timeout`` is in seconds, for one try; the first request may have to compile kernels. Tried three times where the
    connection fails or the server answers 5xx. Never raises for what the server does.
    """
    attempts = Retrying(
        stop=stop_after_attempt(3),
        wait=wait_fixed(RETRY_SECONDS),
        retry=retry_if_exception_type(_NoAnswer),
        reraise=True,
    )
    try:
        return True, attempts(_request, host, address, port, api_key, timeout)
    except (_NoAnswer, _Refused, ChannelLost) as error:
        return False, str(error)


def _request(host: Host, address: str, port: int, api_key: str | None, timeout: float) -> str:
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    word = ""
    for path, body in _BODIES.items():
        arguments: Json = {
            "method": "POST",
            "address": address,
            "port": port,
            "path": path,
            "body": json.dumps(body),
            "headers": headers,
            "timeout": timeout,
        }
        try:
            answer = host.call("http", arguments, timeout=timeout + 10.0)
        except AgentError as error:
            raise _NoAnswer(f"POST {path}: {error.detail.get('state') or error.message}") from error
        status = int(answer["status"])
        if status == 200:
            return path
        word = redact(f"POST {path}: status {status}: {str(answer.get('body'))[:300]}", [api_key or ""])
        if status >= 500:
            raise _NoAnswer(word)
    raise _Refused(word)
