"""The seam between deployer and a host: one small protocol, spoken by SSH, a local child process and a recording fake.

A `Host` takes named operations with JSON arguments. ``call`` is one question and one answer; ``stream`` is one question
and a run of events that ends with a result. The operations, their arguments and their answers are listed in
``docs/architecture.md``.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

Json = dict[str, Any]


class Stream(Protocol):
    """Events of one operation, in order."""

    def next(self, timeout: float | None = None) -> Json | None:
        """The next event; None when ``timeout`` seconds passed without one.

        Raises StopIteration when the operation has ended (``result`` then holds its answer), AgentError when it ended
        with an error, ChannelLost when the connection broke.
        """
        ...

    @property
    def result(self) -> Json:
        """What the operation answered at its end. RuntimeError before that."""
        ...

    def cancel(self) -> None:
        """Tell the host to stop. Returns at once; events already under way are dropped."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Host(Protocol):
    """One connection to one host."""

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        ...

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        """Run one operation and return its answer.

        Raises AgentError (the host refused or failed), ChannelLost (the connection broke, or nothing came for
        ``timeout`` seconds).
        """
        ...

    def stream(self, op: str, args: Json | None = None) -> Stream:
        """Start an operation that reports events."""
        ...

    def close(self, *, bye: bool = True) -> None:
        """End the connection: with ``bye`` a held lease is given back, without it the host sees an abandoned one."""
        ...
