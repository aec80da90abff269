"""Requests to a host that do not wait for one another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from deployer.errors import AgentError, ChannelLost

T = TypeVar("T")


class Beside(Generic[T]):
    """A request to the host, in a thread beside the others."""

    def __init__(self, request: Callable[[], T]) -> None:
        self._request = request
        self._answer: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._request()
        except Exception as error:
            self._error = error

    def wait(self) -> T:
        """Return the answer. Raise what the request raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return cast(T, self._answer)

    def result(self, until: float) -> T | None:
        """Return the answer, None if the host refuses it or does not give it by ``until`` (monotonic).

        Raise ChannelLost if the connection broke.
        """
        self._thread.join(max(0.0, until - time.monotonic()))
        error = self._error
        if isinstance(error, AgentError) or (isinstance(error, ChannelLost) and "timeout" in error.detail):
            return None
        if error is not None:
            raise error
        return self._answer
