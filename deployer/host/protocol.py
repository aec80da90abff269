"""The seam between deployer and a host: one small protocol, spoken over SSH, to a local child process and by a fake.

A `Host` takes named operations with JSON arguments. ``call`` is one question and one answer; ``stream`` is one question
and a series of events that ends with a result. ``docs/architecture.md`` lists the operations with their arguments and
answers; `deployer.host.client` has a typed method for each.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from deployer.records.codec import Json


class Stream(Protocol):
    """Events of one operation, in order."""

    def next(self, timeout: float | None = None) -> Json | None:
        """Return the next event, None if ``timeout`` seconds pass without one.

        Raise StopIteration if the operation has ended (``result`` then holds its answer), AgentError if it ended with
        an error, ChannelLost if the connection broke.
        """

    @property
    def result(self) -> Json:
        """What the operation answered at its end. Raise RuntimeError before that."""

    def cancel(self) -> None:
        """Tell the host to stop, and return at once; events already under way are dropped."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Host(Protocol):
    """One connection to one host."""

    @property
    def name(self) -> str:
        """The host's name in the inventory."""

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        """Run one operation and return its answer.

        Raise AgentError if the host refused or failed, ChannelLost if the connection broke or nothing came for
        ``timeout`` seconds.
        """

    def stream(self, op: str, args: Json | None = None) -> Stream:
        """Start an operation that reports events."""

    def close(self, *, bye: bool = True) -> None:
        """End the connection: with ``bye`` a held lease is given back, without it the host sees an abandoned one."""
