"""All symptoms, held against the evidence of one look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from deployer.inspect.doctor import graphs, hardware, scheduling, serving
from deployer.inspect.doctor.evidence import REQUESTS, Evidence
from deployer.inspect.doctor.symptom import Absent, Present, Symptom, Theme, Unclear
from deployer.sglang.rules.base import Severity

THEMES: tuple[Theme, ...] = (serving.THEME, scheduling.THEME, graphs.THEME, hardware.THEME)
#: Every symptom by its id, in the order of the reference.
SYMPTOMS: Mapping[str, Symptom] = MappingProxyType(
    {symptom.id: symptom for theme in THEMES for symptom in theme.symptoms}
)


@dataclass(frozen=True)
class Checkup:
    """Which symptoms are present (the gravest first), which are not, and which are unclear and why."""

    evidence: Evidence
    present: tuple[tuple[Symptom, Present], ...]
    absent: tuple[tuple[Symptom, str], ...]
    unclear: tuple[tuple[Symptom, str], ...]
    #: How long all of it took, the command's own start included.
    seconds: float = 0.0

    @property
    def serving(self) -> bool:
        """Whether something healthy serves."""
        return all(symptom.severity is not Severity.ERROR for symptom, _ in self.present)

    def as_json(self) -> dict[str, Any]:
        """Return the document of ``doctor --json`` (docs/cli.md)."""
        evidence = self.evidence
        return {
            "service": evidence.service,
            "host": evidence.host,
            "release": evidence.release,
            "profile": evidence.profile if evidence.release else None,
            "seconds": round(self.seconds, 1),
            "watched": round(evidence.watched, 1),
            "asked": list(REQUESTS),
            "ok": self.serving,
            "findings": [
                {
                    "id": symptom.id,
                    "severity": str(symptom.severity),
                    "title": symptom.title,
                    "message": found.message,
                    "evidence": list(found.evidence),
                    "next": found.next,
                    "measure": found.measure,
                }
                for symptom, found in self.present
            ],
            "fine": [{"id": item.id, "title": item.title, "looked": text} for item, text in self.absent],
            "unknown": [{"id": item.id, "title": item.title, "why": text} for item, text in self.unclear],
        }


def examine(evidence: Evidence) -> Checkup:
    """Look for every symptom."""
    names = {
        "live": evidence.profile if evidence.record else "PROFILE",
        "profile": evidence.other_profile(lambda profile: profile.cuda_graph.enabled) or "PROFILE",
        "number": str(evidence.record.number if evidence.record and evidence.record.number else "N"),
    }
    present, absent, unclear = [], [], []
    for symptom in SYMPTOMS.values():
        judged = symptom.stopped or evidence.state.running is not None
        answer = symptom.look(evidence) if judged else Unclear("no process of the service runs")
        if isinstance(answer, Present):
            measure = (symptom.measure if answer.measure is None else answer.measure).format_map(names)
            present.append((symptom, replace(answer, next=answer.next or symptom.next, measure=measure)))
        elif isinstance(answer, Absent):
            absent.append((symptom, answer.looked))
        else:
            unclear.append((symptom, answer.why))
    present.sort(key=lambda pair: pair[0].severity.rank)
    return Checkup(evidence, tuple(present), tuple(absent), tuple(unclear))
