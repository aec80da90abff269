"""Whether the host understands a staged release as intended: its systemd the unit, its SGLang the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from deployer.deploy.drift import decisive
from deployer.deploy.engine_preflight import (
    ENGINE_REMEDY,
    Question,
    ask_host,
    engine_complaint,
    engine_notes,
    kept_values,
)
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import ValidationRefused
from deployer.records.answers import ProbeReport
from deployer.records.host import HostState
from deployer.records.release import Release
from deployer.records.step import Step
from deployer.sglang.server.answers import Asked

_OTHERWISE = (
    "reads the unit differently than intended",
    "if you use a template of your own, compare it with templates/sglang.service.j2",
)
_NO_ROOM = (
    "cannot check the unit, as there is no room for temporary files",
    "free some space in /tmp and /var/tmp on the host (`df -h`, `df -i`), then apply again",
)


def ask_engine(session: Session, release: Release, observed: HostState) -> Asked:
    """Return what the host's own SGLang makes of the release's arguments."""
    question = Question(release.argv, release.environment)
    return ask_host(session.client, session.service, observed, [question])[0]


def validate(session: Session, release: Release, reporter: Reporter, observed: HostState | None = None) -> None:
    """Let the host's systemd read the unit, and raise ValidationRefused if it understands anything else.

    With ``observed`` (its facts) the host's SGLang is asked too, and what it resolves goes into the manifest.
    """
    problems = [
        f"{kind}: {problem}"
        for kind, text in (("live", release.unit), ("candidate", release.candidate))
        for problem in probe_problems(session.client.probe(release.service, text), release.argv)
    ]
    if problems:
        what, remedy = _NO_ROOM if any("No space left on device" in text for text in problems) else _OTHERWISE
        lines = "\n".join(f"  - {text}" for text in problems)
        raise ValidationRefused(
            f"the host's systemd {what}; nothing was changed:\n{lines}",
            phase=Step.VALIDATE,
            remedy=remedy,
            detail={"problems": problems},
        )
    same = f"systemd reads back the same {len(release.argv)} arguments"
    if observed is None:
        reporter.done(same)
        return
    reporter.progress("asking the host's SGLang what it makes of the arguments")
    answer = ask_engine(session, release, observed)
    for note in engine_notes(answer, release):
        reporter.note(note)
    if answer.verdict == "refused":
        raise ValidationRefused(
            f"{engine_complaint(answer, release.sglang)}; nothing was changed",
            phase=Step.VALIDATE,
            remedy=ENGINE_REMEDY,
            detail={"asked": answer.judgement()},
        )
    if answer.verdict == "accepted":
        resolved = release.requested.as_json() | {"engine": kept_values(answer, release, session.learned)}
        session.client.release_update(release.service, release.release, patch={"resolved": resolved})
        same += f", SGLang {release.sglang} accepts them" + (" (cached answer)" if answer.cached else "")
    reporter.done(same)


def probe_problems(report: ProbeReport, argv: Sequence[str]) -> list[str]:
    """Return what is wrong with a unit by systemd's own account. Pure."""
    problems = list(report.verify.lines)
    for path, keys in decisive(report.drop_ins):
        problems.append(f"{path} sets {', '.join(keys)}: remove it, or put it into the template")
    if report.load_error:
        problems.append(report.load_error)
    else:
        pairs = enumerate(zip_longest(report.argv, argv))
        problems += [
            f"systemd reads argument {place} as {_shown(read)}; expected {_shown(expected)}"
            for place, (read, expected) in pairs
            if read != expected
        ][:1]
    if not problems and report.verify.status != 0:
        problems.append(f"systemd-analyze verify ended with status {report.verify.status}")
    return problems


def _shown(argument: str | None) -> str:
    return "(nothing)" if argument is None else repr(argument)
