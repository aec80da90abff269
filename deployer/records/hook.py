"""What a hook gets to know: the facts of one moment of a change. docs/hooks.md has them for its readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployer.records.codec import Record, named


@dataclass(frozen=True, slots=True)
class HookFacts(Record):
    """One moment of a change.

    ``side`` is where the hook runs: ``operator`` or ``host``. ``serving`` is known after a restoration.
    """

    event: str
    service: str
    host: str
    release: str | None
    profile: str | None
    previous: str | None
    time: float
    by: str
    reason: str | None = None
    serving: bool | None = None
    side: str = "operator"
    schema: int = named("schema", default=1)


@dataclass(frozen=True, slots=True)
class HostWebhook(Record):
    """A webhook as the host calls it. URL and headers may be secrets."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    events: tuple[str, ...]
    format: str
    timeout: float


@dataclass(frozen=True, slots=True)
class HostHooks(Record):
    """Whom the host tells what it did by itself (``host``: under which name), and where it writes metrics."""

    host: str
    programs: dict[str, tuple[str, ...]]
    timeout: float
    webhook: HostWebhook | None
    metrics_dir: str | None
