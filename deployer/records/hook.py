"""What a hook gets to know: the facts of one moment of a change. docs/hooks.md has them for its readers."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.records.codec import Record, named


@dataclass(frozen=True, slots=True)
class HookFacts(Record):
    """One moment of a change.

    ``side`` is where the hook runs: ``operator`` or ``host``. ``serving`` is known after a restoration only.
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

    def environment(self) -> dict[str, str]:
        """Return the facts as variables, ``DEPLOYER_HOOK_EVENT`` and so on; unknown ones are empty."""
        return {f"DEPLOYER_HOOK_{name.upper()}": _text(value) for name, value in self.as_json().items()}

    def sentence(self) -> str:
        """Return the moment in one line, for people."""
        words = f"{self.service} on {self.host}: {self.event.replace('_', ' ')}"
        words += f" of {self.release}" if self.release else ""
        words += f" (before: {self.previous})" if self.previous else ""
        words += {None: "", True: "; serving", False: "; NOT serving"}[self.serving]
        return words + (f": {self.reason}" if self.reason else "")


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value).replace("\0", "")
