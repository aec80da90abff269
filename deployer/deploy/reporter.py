"""What a running command reports to its user, the host's long operations among it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from deployer.records.codec import Json
from deployer.records.step import Step
from deployer.text import count_of

if TYPE_CHECKING:
    from deployer.deploy.wait import WaitUpdate
    from deployer.host.streams import Events
    from deployer.records.events import StopEvent

Answer = TypeVar("Answer")


class Reporter:
    """Receives what happens while a command works, and shows nothing of it (`--json` without a terminal)."""

    def step(self, step: Step) -> None:
        """A step begins."""

    def done(self, text: str) -> None:
        """The step that began last has ended well."""

    def failed(self, text: str) -> None:
        """The step that began last has failed."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something the user should act on, though the command goes on."""

    def launch(self, update: WaitUpdate) -> None:
        """News of a launch under way."""

    def progress(self, text: str) -> None:
        """A passing word on long work (stopping, benchmarking)."""

    def bench(self, event: Json) -> None:
        """One progress event of the load client."""
        kind, done, total = event.get("event"), event.get("done"), event.get("total")
        counted = f" {done}/{total}" if done is not None and total is not None else ""
        speed = f", {event['tok_s']:.0f} tok/s so far" if event.get("tok_s") else ""
        level = f" C={event['concurrency']}" if event.get("concurrency") else ""
        self.progress(str(event.get("text")) if kind == "note" else f"{kind}{level}{counted}{speed}")

    def close(self) -> None:
        """Take down whatever is still drawn."""


def follow(stream: Events[StopEvent, Answer], reporter: Reporter) -> Answer:
    """Follow `unit_stop` or `converge` to its end and return the answer."""
    for event in stream.until_end(1.0):
        if event:
            reporter.progress(_described(event))
    return stream.result


def _described(event: StopEvent) -> str:
    if event.action:
        return event.action
    if event.stage == "draining":
        return f"draining: {count_of(event.inflight or 0, 'request')} in flight"
    if event.stage == "aborting":
        return f"time is up: {count_of(event.inflight or 0, 'request')} cut off"
    if event.stage == "stopping":
        return "stopping it (SIGTERM)"
    if event.stage == "killing":
        return "it did not stop in time; killing it (SIGKILL)"
    holders = []
    if event.pids:
        holders.append(f"{len(event.pids)} processes")
    if event.port:
        holders.append("the port")
    if event.gpu_memory:
        holders.append(f"{event.gpu_memory / 1024**3:.1f} GiB of GPU memory")
    return "waiting for " + (", ".join(holders) or "it") + " to be gone"
