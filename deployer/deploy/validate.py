"""Whether the host understands a staged release as it was meant: its systemd the unit, its SGLang the arguments."""

from __future__ import annotations

from deployer.deploy.engine_preflight import (
    ENGINE_REMEDY,
    Question,
    ask_host,
    asking_notes,
    engine_complaint,
    telling,
)
from deployer.deploy.model import Step, Trial
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import ValidationRefused
from deployer.records.answers import ProbeReport
from deployer.records.host import HostState
from deployer.sglang.server.answers import Asked

#: Keys that a drop-in may not take out of deployer's hands: what runs, as whom, and when it is started again.
DECISIVE = frozenset({"ExecStart", "Type", "User", "Restart"})


def ask_engine(session: Session, trial: Trial, observed: HostState) -> Asked:
    """What the host's own SGLang makes of the trial's arguments."""
    question = Question(trial.argv, trial.environment)
    return ask_host(session.client, session.service, observed, [question])[0]


def validate(session: Session, trial: Trial, reporter: Reporter, observed: HostState | None = None) -> None:
    """Let the host's systemd read the unit, and refuse if it understands anything else than what was meant.

    With ``observed`` (its facts) the host's SGLang is asked too, and what it resolves goes into the manifest.
    """
    reports = {"live": session.client.probe(trial.service, trial.unit)}
    reports["candidate"] = session.client.probe(trial.service, trial.candidate)
    problems = [
        f"{kind}: {text}" for kind, report in reports.items() for text in probe_problems(report, trial.argv)
    ]
    if problems:
        full = any("No space left on device" in text for text in problems)
        raise ValidationRefused(
            (
                "the host's systemd cannot check the unit, as there is no room for temporary files"
                if full
                else "the host's systemd does not understand the unit as it was meant"
            )
            + "; nothing was changed:\n"
            + "\n".join(f"  - {text}" for text in problems),
            phase=Step.VALIDATE,
            remedy="free some space in /tmp and /var/tmp on the host (`df -h`, `df -i`), then apply again"
            if full
            else "if you use a template of your own, compare it with templates/sglang.service.j2",
            detail={"problems": problems},
        )
    same = f"systemd reads back the same {len(trial.argv)} arguments"
    if observed is None:
        reporter.done(same)
        return
    reporter.progress("asking the host's SGLang what it makes of the arguments")
    asked = ask_engine(session, trial, observed)
    for note in asking_notes(asked, trial):
        reporter.note(note)
    if asked.verdict == "refused":
        raise ValidationRefused(
            f"{engine_complaint(asked, trial.sglang)}; nothing was changed",
            phase=Step.VALIDATE,
            remedy=ENGINE_REMEDY,
            detail={"asked": asked.judgement()},
        )
    if asked.verdict == "accepted":
        resolved = trial.manifest(created=0.0, operator="")["resolved"] | {
            "engine": telling(asked, trial, session.learned)
        }
        session.client.release_update(trial.service, trial.release, patch={"resolved": resolved})
        same += f", SGLang {trial.sglang} accepts them" + (" (as asked before)" if asked.cached else "")
    reporter.done(same)


def probe_problems(report: ProbeReport, argv: tuple[str, ...]) -> list[str]:
    """What is wrong with a unit by systemd's own account. Pure."""
    problems = list(report.verify_lines)
    for drop_in in report.drop_ins:
        decisive = sorted(set(drop_in["keys"]) & DECISIVE)
        if decisive:
            problems.append(
                f"{drop_in['path']} sets {', '.join(decisive)}: remove it, or put it into the template"
            )
    if report.load_error:
        problems.append(report.load_error)
    elif report.argv != argv:
        place = next(
            (
                index
                for index, (read, meant) in enumerate(zip(report.argv, argv, strict=False))
                if read != meant
            ),
            min(len(report.argv), len(argv)),
        )
        read = report.argv[place] if place < len(report.argv) else "(nothing)"
        meant = argv[place] if place < len(argv) else "(nothing)"
        problems.append(f"argument {place} reads back as {read!r}, meant was {meant!r}")
    if not problems and report.verify_status != 0:
        problems.append(f"systemd-analyze verify ended with status {report.verify_status}")
    return problems
