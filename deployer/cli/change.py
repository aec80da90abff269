"""Commands that change a host: apply, rollback, resume, converge; and plan, which only looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from deployer.cli.app import App
from deployer.cli.options import FILE, common_options, pass_app, wait_option
from deployer.cli.output import print_json
from deployer.errors import ConsentRequired, DeployerError, PreflightRefused, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deployer.config.profile import Profile
    from deployer.deploy.apply import Preview
    from deployer.deploy.reporter import Reporter
    from deployer.deploy.session import Session
    from deployer.records.outcome import Outcome, Plan
    from deployer.records.verdict import Verdict

#: Imported while a change connects.
CHANGE_MODULES = ("deployer.deploy.rollback", "deployer.report.change_view")

yes_option = click.option("--yes", "-y", is_flag=True, help="Restart what is live without asking for confirmation.")


class AskAtTerminal:
    """Consent to a restart: not needed if nothing live is interrupted; given by --yes, or at a terminal.

    Neither the setting `yes` nor a plan that was agreed on before (``planned``) answers for a protected service, whose
    name has to be typed.
    """

    def __init__(self, app: App, reporter: Reporter, yes: bool, *, planned: bool = False) -> None:
        self._app = app
        self._reporter = reporter
        service = app.service()
        self._protected = any(item.protected for item in (service, *app.inventory.rivals(service)))
        self._yes = yes or ((planned or app.settings.yes) and not self._protected)

    def possible(self, plan: Plan) -> None:
        if not plan.interrupts or self._yes or self._app.interactive:
            return
        from deployer.records.step import Step

        if not self._app.as_json:
            self._show(plan)
        raise ConsentRequired(
            f"{plan.stopped} would be stopped {'for' if plan.displaces else 'on'} {plan.place}, and there is no "
            "terminal to confirm on; nothing was changed",
            phase=Step.CONSENT,
            detail={"plan": plan.as_json()},
        )

    def given(self, plan: Plan) -> bool:
        if not plan.interrupts or self._yes:
            return True
        self._show(plan)
        if self._protected:
            question = f"{plan.place} is protected. Type {plan.service} to restart it"
            return bool(click.prompt(question, default="", show_default=False).strip() == plan.service)
        return bool(click.confirm(f"Restart {plan.place}?", default=False))

    def unclear(self, verdict: Verdict) -> bool:
        if not self._app.interactive:
            return False
        self._reporter.close()
        for reason in verdict.reasons:
            self._app.console.print(f"  {reason}", highlight=False, markup=False)
        return bool(click.confirm("The benchmark is inconclusive. Promote anyway?", default=False))

    def _show(self, plan: Plan) -> None:
        from deployer.report.change_view import plan_view

        self._reporter.close()
        self._app.console.print(plan_view(plan))


def run_change(
    app: App,
    command: str,
    profile: str | None,
    wait: float,
    work: Callable[[Session, Reporter], Outcome],
    *,
    compares: bool = False,
) -> int:
    """Open a session, do the work, and print an outcome document whatever happens.

    ``compares``: the work begins with a look at what runs, so /health is asked at once.
    """
    from deployer.records.step import Step

    service = app.service()
    session: Session | None = None
    reporter = app.reporter()
    try:
        reporter.step(Step.CONNECT)
        with app.session(command, meanwhile=CHANGE_MODULES) as session:
            if compares:
                session.begin_health()
            hello = session.client.hello()
            name = session.host_config.name
            label = name if name == hello.hostname else f"{name} ({hello.hostname})"
            reporter.done(f"{label}, systemd {hello.systemd}")
            session.patience = wait
            outcome = session.persist(lambda: work(session, reporter), reporter.warn)
    except KeyboardInterrupt:
        from deployer.deploy.outcomes import interrupted_outcome

        outcome = interrupted_outcome(
            service.name,
            profile,
            changing=session is not None and session.changing,
            reopen=lambda: app.session("status after an interruption"),
        )
    except DeployerError as error:
        if not app.as_json:
            raise
        from deployer.deploy.outcomes import refused_outcome

        document = refused_outcome(error, service.name, profile).as_json()
        print_json(document | ({"plan": error.detail["plan"]} if "plan" in error.detail else {}))
        return error.exit_code
    finally:
        reporter.close()
    if app.as_json:
        print_json(outcome.as_json())
    else:
        from deployer.report.change_view import print_outcome

        print_outcome(app.console, outcome)
    return outcome.exit_code


@click.command()
@click.argument("profile", required=False)
@yes_option
@click.option(
    "--plan",
    "plan_file",
    type=FILE,
    help="Apply this plan of `plan --out`, without asking again; refuse if anything that it depends on has changed.",
)
@click.option(
    "--baseline",
    type=click.Choice(["profile", "live", "none"]),
    help="What to compare the benchmark with, instead of relative_gate.baseline: earlier starts of PROFILE, the live "
    "release, or nothing (accept a loss).",
)
@wait_option
@common_options
@pass_app
def apply(
    app: App,
    profile: str | None,
    yes: bool,
    plan_file: Path | None,
    baseline: Literal["profile", "live", "none"] | None,
    wait: float,
) -> int:
    """Make PROFILE live; promote it only once it is proven.

    Renders and pushes it, restarts the server, waits, verifies and benchmarks it. If a step fails, the release that
    was live before serves again afterwards.

    \b
    Examples:
      deployer apply pp8-async
      deployer apply tp8 --yes --json > outcome.json
      deployer apply tp8 --baseline none
      deployer apply tp8 --yes --wait=30m
      deployer apply --plan tp8.plan
    """
    saved = None
    if plan_file is not None:
        from deployer.deploy.saved_plan import read_plan

        saved = read_plan(plan_file)
        if profile not in (None, saved.plan.profile):
            raise UsageError(f"{plan_file} plans {saved.plan.profile}, not {profile}", remedy="leave out PROFILE")
        profile = saved.plan.profile
    if profile is None:
        raise UsageError(
            "apply needs a PROFILE", remedy="`deployer profiles` lists them; for example: deployer apply tp8"
        )
    app.connect_ahead()

    def work(session: Session, reporter: Reporter) -> Outcome:
        from deployer.deploy.apply import apply as apply_profile

        consent = AskAtTerminal(app, reporter, yes, planned=saved is not None)
        return apply_profile(session, wanted, reporter, consent, saved=saved)

    wanted = app.profile(profile)
    if baseline:
        gate = wanted.relative_gate.model_copy(update={"baseline": baseline})
        wanted = wanted.model_copy(update={"relative_gate": gate})
    return run_change(app, f"apply {profile}", profile, wait, work, compares=True)


@click.command()
@click.option("--to", type=int, metavar="N", help="Number of the release to go back to (see `deployer history`).")
@yes_option
@wait_option
@common_options
@pass_app
def rollback(app: App, to: int | None, yes: bool, wait: float) -> int:
    """Go back to the release that was live before, or to release N.

    Release N must have been live once.

    \b
    Examples:
      deployer rollback
      deployer rollback --to 3 --yes
    """

    def work(session: Session, reporter: Reporter) -> Outcome:
        from deployer.deploy.rollback import rollback as roll_back

        return roll_back(session, reporter, AskAtTerminal(app, reporter, yes), to=to)

    return run_change(app, "rollback" if to is None else f"rollback --to {to}", None, wait, work, compares=True)


@click.command()
@wait_option
@common_options
@pass_app
def resume(app: App, wait: float) -> int:
    """Resume an interrupted change in the step it is in.

    For example after a closed laptop or a lost connection.

    \b
    Example:
      deployer resume
    """

    def work(session: Session, reporter: Reporter) -> Outcome:
        from deployer.deploy.rollback import resume as resume_change

        return resume_change(session, reporter)

    return run_change(app, "resume", None, wait, work)


@click.command()
@yes_option
@click.option("--dry-run", is_flag=True, help="Only show how the host differs, and whether a restart is needed.")
@wait_option
@common_options
@pass_app
def converge(app: App, yes: bool, dry_run: bool, wait: float) -> int:
    """Make the host equal to its live release; prove that it serves.

    Text and mode of the unit, its enablement and what runs become those of the release. What serves is started again
    only if it runs something else, and after consent.

    \b
    Examples:
      deployer converge        after `deployer status` shows drift, or a stopped service
      deployer converge --dry-run
    """

    def work(session: Session, reporter: Reporter) -> Outcome:
        from deployer.deploy.rollback import converge as converge_host

        return converge_host(session, reporter, AskAtTerminal(app, reporter, yes))

    if dry_run:
        with app.session("converge --dry-run", meanwhile=CHANGE_MODULES) as session:
            from deployer.deploy.rollback import converge_plan

            plan = converge_plan(session)
        from deployer.report.change_view import plan_view

        app.show(plan.as_json(), plan_view(plan))
        return 0
    return run_change(app, "converge", None, wait, work)


@click.command()
@click.argument("profile")
@click.option("--diff", is_flag=True, help="Also show the unit's text, line by line.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 0 if nothing would change or differs, else with 10.")
@click.option("--out", type=FILE, help="Keep the plan in this file, for `apply --plan FILE`.")
@common_options
@pass_app
def plan(app: App, profile: str, diff: bool, detailed_exitcode: bool, out: Path | None) -> int:
    """Show what `apply PROFILE` would change, and its cost.

    Changes nothing. Exits with 3 if `apply` would refuse, and lists every objection. Without -s PROFILE is planned for
    all services of the inventory, a line each (with --diff in full); --out keeps the plan of one.

    \b
    Examples:
      deployer plan pp8-async
      deployer plan pp8-async --diff
      deployer plan tp8 --detailed-exitcode --json
      deployer plan tp8 --out tp8.plan
    """
    app.connect_ahead()
    wanted = app.profile(profile)

    def view(preview: Preview) -> RenderableType:
        from deployer.report.change_view import plan_view

        return plan_view(preview.plan, preview.objections, preview.notes, diff=diff)

    if out is None and len(services := app.services()) > 1:
        from deployer.cli.every import show_every
        from deployer.deploy.apply import Preview
        from deployer.report.every_view import plan_line

        return show_every(
            app,
            f"plan {profile}",
            services,
            lambda session: looked_ahead(session, wanted),
            document=Preview.as_json,
            line=plan_line,
            code=lambda preview: plan_code(preview, detailed_exitcode),
            whole=view if diff else None,
        )
    with app.session(f"plan {profile}", meanwhile=CHANGE_MODULES) as session:
        preview = looked_ahead(session, wanted)
    app.show(preview.as_json(), view(preview))
    code = plan_code(preview, detailed_exitcode)
    if out is not None and code != PreflightRefused.exit_code:
        from deployer.deploy.saved_plan import write_plan

        write_plan(out, preview.saved)
    return code


def looked_ahead(session: Session, profile: Profile) -> Preview:
    """Return what an apply of the profile would do; /health is asked beside everything else."""
    session.begin_health()
    from deployer.deploy.apply import preview

    return preview(session, profile)


def plan_code(preview: Preview, detailed: bool) -> int:
    """Return the exit code of a plan; ``detailed``: 10 if something would change, or the host differs."""
    if preview.objections:
        return PreflightRefused.exit_code
    return 10 if detailed and not preview.plan.equal else 0
