"""Commands that change a host: apply, rollback, resume, converge; and plan, which only looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import click

from deployer.cli.common import App, at_terminal, common_options, finish, pass_app, refused_outcome
from deployer.cli.output import print_json
from deployer.deploy import apply as apply_
from deployer.deploy import rollback as rollback_
from deployer.deploy.model import Json, Outcome, Step
from deployer.deploy.plan import Plan
from deployer.deploy.reporter import Reporter
from deployer.deploy.session import Session
from deployer.errors import ConsentRequired, DeployerError, PreflightRefused
from deployer.report.views import plan_view

yes_option = click.option(
    "--yes", "-y", is_flag=True, help="Agree to the restart of what is live; ask nothing."
)


class AskAtTerminal:
    """Consent: not asked where nothing live is interrupted; asked at a terminal; else --yes is needed."""

    def __init__(self, app: App, reporter: Reporter, yes: bool) -> None:
        self._app = app
        self._reporter = reporter
        self._yes = yes or app.settings.yes

    def possible(self, plan: Plan) -> None:
        app = self._app
        if not plan.interrupts or self._yes or (at_terminal() and not app.as_json):
            return
        self._reporter.close()
        if not app.as_json:
            app.console.print(plan_view(plan))
        raise ConsentRequired(
            f"{plan.live or 'what runs now'} would be stopped and nobody is here to agree; nothing was changed",
            phase=Step.CONSENT,
            detail={"plan": plan.as_dict()},
        )

    def given(self, plan: Plan) -> bool:
        if not plan.interrupts or self._yes:
            return True
        self._reporter.close()
        self._app.console.print(plan_view(plan))
        return bool(click.confirm("Go on?", default=False))

    def unclear(self, verdict: Json) -> bool:
        if not at_terminal() or self._app.as_json:
            return False
        self._reporter.close()
        for reason in verdict.get("reasons") or ():
            self._app.console.print(f"  {reason}", highlight=False, markup=False)
        return bool(click.confirm("The benchmark cannot tell. Promote all the same?", default=False))


def interrupted_outcome(app: App, service: str, profile: str | None, *, changing: bool) -> Outcome:
    """A Ctrl-C outside of an attempt: nothing was changed yet, or a converge was cut short."""
    message = "interrupted before anything was changed; what was serving is serving"
    if changing:
        message = "interrupted while the host was being made equal to its live release"
        try:
            with app.session("look after an interruption") as look:
                state = look.state()
            live = state.live.release if state.live else "nothing"
            message += f"; live is {live}, the unit is {state.unit.active}. `deployer converge` completes it"
        except (DeployerError, KeyboardInterrupt):
            message += "; look with `deployer status`, `deployer converge` completes it"
    return Outcome(outcome="interrupted", service=service, profile=profile, exit_code=130, message=message)


def run_change(
    app: App, command: str, profile: str | None, work: Callable[[Session, Reporter], Outcome]
) -> int:
    """Open a session, do the work, and end with an outcome document whatever happens."""
    service = app.service()
    session = app.session(command)
    reporter = app.reporter()
    try:
        reporter.step(Step.CONNECT)
        with session:
            hello = session.client.hello()
            name = session.host_config.name
            known = name if name == hello.hostname else f"{name} ({hello.hostname})"
            reporter.done(f"{known}, systemd {hello.systemd}")
            outcome = work(session, reporter)
    except KeyboardInterrupt:
        outcome = interrupted_outcome(app, service.name, profile, changing=session.changing)
    except DeployerError as error:
        if not app.as_json:
            raise
        document = refused_outcome(error, service.name, profile).as_dict()
        print_json(document | ({"plan": error.detail["plan"]} if "plan" in error.detail else {}))
        return error.exit_code
    finally:
        reporter.close()
    return finish(app, outcome)


@click.command()
@click.argument("profile")
@yes_option
@click.option(
    "--baseline",
    type=click.Choice(["profile", "live", "none"]),
    help="What the benchmark is compared with, instead of what relative_gate.baseline says: earlier starts of PROFILE, "
    "the live release, or nothing (accept a loss).",
)
@common_options
@pass_app
def apply(app: App, profile: str, yes: bool, baseline: Literal["profile", "live", "none"] | None) -> int:
    """Make PROFILE live: render, push, restart, wait, verify, benchmark; only then promote.

    Whatever fails on the way, the release that was live before serves again afterwards.

    \b
    Examples:
      deployer apply pp8-async
      deployer apply tp8 --yes --json > outcome.json
      deployer apply tp8 --baseline none
    """
    wanted = app.profile(profile)
    if baseline:
        changed = wanted.relative_gate.model_copy(update={"baseline": baseline})
        wanted = wanted.model_copy(update={"relative_gate": changed})
    return run_change(
        app,
        f"apply {profile}",
        profile,
        lambda session, reporter: apply_.apply(session, wanted, reporter, AskAtTerminal(app, reporter, yes)),
    )


@click.command()
@click.option(
    "--to", type=int, metavar="N", help="The number of the release to go back to (see `deployer history`)."
)
@yes_option
@common_options
@pass_app
def rollback(app: App, to: int | None, yes: bool) -> int:
    """Go back to the release that was live before, or to release N if it was ever live.

    \b
    Examples:
      deployer rollback
      deployer rollback --to 3 --yes
    """
    return run_change(
        app,
        "rollback" if to is None else f"rollback --to {to}",
        None,
        lambda session, reporter: rollback_.rollback(
            session, reporter, AskAtTerminal(app, reporter, yes), to=to
        ),
    )


@click.command()
@common_options
@pass_app
def resume(app: App) -> int:
    """Go on with a change that was left under way (a closed laptop, a lost connection), in the step it is in.

    \b
    Example:
      deployer resume
    """
    return run_change(app, "resume", None, rollback_.resume)


@click.command()
@common_options
@pass_app
def converge(app: App) -> int:
    """Make the host equal to its live release and prove that it serves.

    \b
    Example:
      deployer converge        after `deployer status` shows drift, or a service that was stopped
    """
    return run_change(app, "converge", None, rollback_.converge)


@click.command()
@click.argument("profile")
@click.option("--diff", is_flag=True, help="Also the unit's text, line by line.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 0 for no change and 10 for changes.")
@common_options
@pass_app
def plan(app: App, profile: str, diff: bool, detailed_exitcode: bool) -> int:
    """Show what `apply PROFILE` would change, argument by argument, and what it would cost. Changes nothing.

    Exits with 3 where `apply` would refuse, and names every objection.

    \b
    Examples:
      deployer plan pp8-async
      deployer plan pp8-async --diff
      deployer plan tp8 --detailed-exitcode --json
    """
    wanted = app.profile(profile)
    with app.session(f"plan {profile}") as session:
        made, _, against, said = apply_.plan(session, wanted)
    document = made.as_dict() | {"objections": [item.as_dict() for item in against], "notes": said}
    app.show(document, plan_view(made, document["objections"], said, diff=diff))
    if against and made.action == "deploy":
        return PreflightRefused.exit_code
    return 10 if detailed_exitcode and made.restart else 0
