"""`doctor`: what may make a running service slower or worse than it could be.

`collect` looks at the host once, `judge` is pure: every check looks at what was collected and says what it found, that
it found nothing, or why it could not look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from deployer.inspect.doctor import batching, graphs, hardware, serving
from deployer.inspect.doctor.base import Check, Finding, Fine, Hit, Theme, Unknown
from deployer.inspect.doctor.evidence import Evidence
from deployer.sglang.rules.base import Severity

__all__ = ["CHECKS", "THEMES", "Check", "Diagnosis", "Finding", "Severity", "Theme", "judge"]

THEMES: tuple[Theme, ...] = (serving.THEME, batching.THEME, graphs.THEME, hardware.THEME)
#: Every check by its id, in the order of the reference.
CHECKS: Mapping[str, Check] = MappingProxyType(
    {check.id: check for theme in THEMES for check in theme.checks}
)


@dataclass(frozen=True)
class Diagnosis:
    """The findings, the gravest first; what was looked at and is fine; what could not be looked at, and why."""

    findings: tuple[Finding, ...]
    fine: tuple[tuple[Check, str], ...]
    unknown: tuple[tuple[Check, str], ...]

    @property
    def serving(self) -> bool:
        """Whether something healthy serves."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The part of the document that the checks give."""
        return {
            "ok": self.serving,
            "findings": [finding.as_dict() for finding in self.findings],
            "fine": [{"id": check.id, "title": check.title, "looked": text} for check, text in self.fine],
            "unknown": [{"id": check.id, "title": check.title, "why": text} for check, text in self.unknown],
        }


def judge(evidence: Evidence, checks: Iterable[Check] | None = None) -> Diagnosis:
    """Ask all checks, or those given."""
    names = {
        "live": evidence.profile,
        "profile": evidence.other_profile(lambda profile: profile.cuda_graph.enabled) or "PROFILE",
        "number": str((evidence.record and evidence.record.number) or "N"),
    }
    findings, fine, unknown = [], [], []
    for check in CHECKS.values() if checks is None else checks:
        answer = check.look(evidence)
        if isinstance(answer, Hit):
            findings.append(check.finding(answer, names))
        elif isinstance(answer, Fine):
            fine.append((check, answer.looked))
        elif isinstance(answer, Unknown):
            unknown.append((check, answer.why))
    ordered = sorted(findings, key=lambda finding: finding.severity.rank)
    return Diagnosis(tuple(ordered), tuple(fine), tuple(unknown))
