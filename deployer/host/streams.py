"""What comes from a host, as records and as the operator's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from deployer.errors import AgentError, DeployerError, LeaseHeld, LeaseLost, OnHold, WorldMoved
from deployer.host.channel import FULL, disk_is_full
from deployer.host.protocol import Stream
from deployer.records.codec import BadRecord, Json
from deployer.records.host import Hold, Lease

Event = TypeVar("Event")
Answer = TypeVar("Answer")
Decoded = TypeVar("Decoded")


def translated(error: AgentError, host: str) -> DeployerError:
    """Return the host's refusal as the error that says what it means to the operator; others stay as they are."""
    if error.code == "lease-held":
        try:
            lease = Lease.from_json({"generation": 0, **(error.detail.get("lease") or {})})
        except BadRecord:
            lease = Lease(0)
        return LeaseHeld(f"{host} is {lease}", detail=error.detail)
    if error.code == "on-hold":
        hold = Hold.from_json(error.detail.get("hold") or {})
        return OnHold(f"{host} is {hold}", detail=error.detail)
    if error.code == "lease-lost":
        return LeaseLost(f"{host}: {error.message}", detail=error.detail)
    if error.code == "moved":
        return WorldMoved(f"{host}: {error.message}", detail=error.detail)
    if disk_is_full(error.code, error.detail):
        where = f" of {error.detail['path']}" if error.detail.get("path") else ""
        return AgentError(
            error.code, f"{host}: the disk{where} is full: {error.message}", remedy=FULL, detail=error.detail
        )
    return error


class Events(Generic[Event, Answer]):
    """The typed events of one operation, and its answer. Errors are the operator's (see `translated`)."""

    def __init__(
        self,
        stream: Stream,
        host: str,
        event: Callable[[Json], Event | None],
        answer: Callable[[Json], Answer],
    ) -> None:
        self._stream, self._host, self._event, self._answer = stream, host, event, answer

    def next(self, timeout: float | None = None) -> Event | None:
        """Return the next event, None if ``timeout`` seconds pass without one. Raise StopIteration at the end."""
        try:
            data = self._stream.next(timeout)
        except AgentError as error:
            raise translated(error, self._host) from error.__cause__
        return None if data is None else decoded(self._event, data, self._host)

    def until_end(self, timeout: float | None = None) -> Iterator[Event | None]:
        """Yield what `next` returns until the operation has ended."""
        while True:
            try:
                event = self.next(timeout)
            except StopIteration:
                return
            yield event

    @property
    def result(self) -> Answer:
        """What the operation answered at its end. Raise RuntimeError before that."""
        return decoded(self._answer, self._stream.result, self._host)

    def cancel(self) -> None:
        """Tell the host to stop."""
        self._stream.cancel()

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.__exit__(kind, error, trace)


def decoded(decode: Callable[[Json], Decoded], data: Json, host: str) -> Decoded:
    """Return the record that a host's answer holds. Raise AgentError ``bad-answer`` if it has another shape."""
    try:
        return decode(data)
    except BadRecord as error:
        raise AgentError("bad-answer", f"{host}: its answer has another shape than expected: {error}") from error
