"""Commands that only look: status, history, logs, profiles."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from deployer.cli.app import App, load_in_background
from deployer.cli.options import Seconds, common_options, pass_app
from deployer.cli.output import Unbreakable, print_json
from deployer.errors import UsageError

if TYPE_CHECKING:
    from deployer.deploy.session import Session
    from deployer.inspect.status import StatusReport


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every few seconds until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(min=0.5),
    default=2.0,
    show_default=True,
    help="With --watch: seconds between two looks.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also show what SGLang made of its arguments at that start.")
@common_options
@pass_app
def status(app: App, watch: bool, interval: float, verbose: bool) -> int:
    """Show what is live, whether it is healthy, and how fast it is.

    The speed is that of the benchmark that proved it. Exits with 0 if the live release is healthy, with 6 if nothing
    healthy serves.

    \b
    Examples:
      deployer status
      deployer status --verbose
      deployer status --watch
      deployer status --json | jq .ok
    """
    if watch and app.as_json:
        raise UsageError(
            "--watch redraws a terminal and cannot be one JSON document", remedy="leave out one of the two"
        )
    with app.session("status", meanwhile=["deployer.inspect.status"]) as session:
        from deployer.inspect.status import status as current_status

        load_in_background(["deployer.report.service_view", "deployer.cli.console"])  # /health takes a second
        report = current_status(session)
        if watch:
            report = keep_watching(app, session, report, interval)
        else:
            from deployer.report.service_view import status_view

            app.show(report.as_json(), status_view(report, verbose=verbose))
    return 0 if report.health.ok else 6


def keep_watching(app: App, session: Session, report: StatusReport, interval: float) -> StatusReport:
    """Show the status again and again until Ctrl-C; return the last. Off a terminal each look is printed below."""
    from rich.live import Live

    from deployer.inspect.status import status as current_status
    from deployer.report.service_view import status_view

    console = app.console
    if not console.is_terminal:
        try:
            while True:
                console.print(status_view(report))
                time.sleep(interval)
                report = current_status(session)
        except KeyboardInterrupt:
            return report
    try:
        with Live(status_view(report), console=console, screen=True) as live:
            while True:
                time.sleep(interval)
                report = current_status(session)
                live.update(status_view(report), refresh=True)
    except KeyboardInterrupt:
        console.print(status_view(report))
    return report


@click.command()
@click.argument("release", required=False, type=click.IntRange(min=0))
@click.option("--defaults", is_flag=True, help="With RELEASE: include arguments that nobody requested.")
@common_options
@pass_app
def history(app: App, release: int | None, defaults: bool) -> int:
    """List the releases of a service, the newest first.

    For each: what was tried, what came of it, how fast it was. With the number of a release: what was in effect in
    its server, argument by argument.

    \b
    Examples:
      deployer history
      deployer history 2
      deployer history 2 --defaults
    """
    if defaults and release is None:
        raise UsageError("--defaults shows the arguments of one release", remedy="name it: deployer history 2")
    with app.session("history") as session:
        from deployer.inspect.history import history as releases_of
        from deployer.inspect.history import release_report

        if release is not None:
            from deployer.report.service_view import release_view

            report = release_report(session, release)
            app.show(report.as_json(), release_view(report, defaults=defaults))
            return 0
        releases = releases_of(session.service.name, session.state())
    from deployer.report.service_view import history_view

    app.show(releases.as_json(), history_view(releases, app.console.width))
    return 0


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 1_000_000),
    default=50,
    show_default=True,
    help="Number of past lines.",
)
@click.option("--release", type=int, metavar="N", help="The log of the last start of release N.")
@common_options
@pass_app
def logs(app: App, follow: bool, lines: int, release: int | None) -> int:
    """Print the service's log from the host, without secrets.

    It is read from the journal.

    \b
    Examples:
      deployer logs -f
      deployer logs --release 3 -n 200
    """
    if app.as_json and follow:
        raise UsageError("--follow never ends and cannot be one JSON document", remedy="leave out one of the two")
    with app.session("logs") as session:
        from deployer.inspect.history import log

        entries = log(session, lines=lines, follow=follow, release=release)
        if app.as_json:
            print_json({"service": session.service.name, "lines": [entry.as_json() for entry in entries]})
            return 0
        out = Unbreakable(sys.stdout)
        empty = True
        try:
            for entry in entries:
                empty = False
                out.write(entry.text + "\n")
                out.flush()
                if out.broken:
                    break
        except KeyboardInterrupt:
            return 130
        if empty and lines:
            app.errors.print(f"the journal has no lines of {session.unit}", highlight=False)
    return 0


@click.command()
@click.option("--sglang", "version", metavar="VERSION", help="Show the arguments for this SGLang version.")
@common_options
@pass_app
def profiles(app: App, version: str | None) -> int:
    """List the profiles with the SGLang arguments of each.

    Connects to no host.

    \b
    Examples:
      deployer profiles
      deployer profiles --sglang 0.5.23 --json
    """
    from deployer.report.service_view import profiles_view
    from deployer.sglang.flags.versions import flag_table
    from deployer.sglang.profile_list import profile_listing

    learned = app.flags_folder()
    entries = profile_listing(app.profile_folders(), version, learned)
    note = flag_table(version, learned).note
    notes = [note] if note else []
    app.show({"profiles": entries, "notes": notes}, profiles_view(entries, notes))
    return 0
