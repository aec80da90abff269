"""`metrics`: what the hosts write for node_exporter's textfile collector, of all services together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deployer.deploy.session import Session
from deployer.exposition import Sample, exposition
from deployer.inspect.every import Look
from deployer.records.answers import Metric
from deployer.records.codec import Json, encode


@dataclass(frozen=True)
class Metrics:
    """The metrics of one service."""

    service: str
    host: str
    metrics: tuple[Metric, ...]

    def as_json(self) -> Json:
        """Return the document of ``metrics --json`` (docs/cli.md)."""
        return {"service": self.service, "host": self.host, "metrics": encode(self.metrics)}


def metrics_of(session: Session) -> Metrics:
    """Ask the host for the service's metrics."""
    name = session.service.name
    return Metrics(name, session.host_config.name, session.client.metrics(name))


def text_of(looks: Iterable[Look[Metrics]]) -> str:
    """Return the metrics of all services whose host has answered, in Prometheus' text format."""
    answers = [look.answer for look in looks if look.answer is not None]
    return exposition(Sample(item.name, item.labels, item.value) for answer in answers for item in answer.metrics)
