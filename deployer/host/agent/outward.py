"""What the agent does towards others: it posts to a webhook, and runs the programs of an admin."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional

from deployer.notice import run_program

from .base import Fail


class Outward:
    """The machine's ways to those who are not on it, or not ours."""

    def post(self, url: str, body: Mapping[str, Any], headers: Dict[str, str], timeout: float) -> int:
        """Post JSON and return the status of the answer. A redirection is not followed: it may lead anywhere.

        Raise Fail ``http`` if nothing answers. Its message has neither the URL, which can be a secret, nor a header.
        """
        from http.client import HTTPException  # here, because most agents call nobody
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class Staying(HTTPRedirectHandler):
            def redirect_request(self, *args: Any) -> None:
                return None

        if not url.startswith(("http://", "https://")):
            raise Fail("http", "its URL does not begin with http:// or https://")
        try:
            data = json.dumps(body).encode("utf-8")
            request = Request(url, data, dict(headers, **{"Content-Type": "application/json"}))
            with build_opener(Staying).open(request, timeout=timeout) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise Fail("http", type(reason if isinstance(reason, Exception) else error).__name__) from None

    def run_hook(self, command: List[str], facts: Mapping[str, Any], timeout: float) -> Optional[str]:
        """Run an admin's program with the facts of a moment; return why it failed, None if it did not."""
        return run_program(command, facts, timeout)
