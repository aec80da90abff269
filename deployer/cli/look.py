"""Commands that only look: status, history, logs, profiles."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from deployer.cli.app import App, load_in_background
from deployer.cli.options import Seconds, common_options, pass_app
from deployer.cli.output import Unbreakable, print_json
from deployer.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deployer.config.inventory import ServiceConfig
    from deployer.inspect.status import StatusReport

T = TypeVar("T")


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
@click.option("--strict", is_flag=True, help="Exit with 10 if the host differs from its live release.")
@common_options
@pass_app
def status(app: App, watch: bool, interval: float, verbose: bool, strict: bool) -> int:
    """Show what is live, whether it is healthy, and how fast it is.

    The speed is that of the benchmark that proved it. Exits with 0 if the live release is healthy, with 6 if nothing
    healthy serves, or if a change is under way that nobody finishes. Without -s all services of the inventory are
    shown, a line each (with --verbose in full).

    \b
    Examples:
      deployer status
      deployer status --verbose
      deployer status --watch
      deployer status --strict
      deployer status --json | jq .ok
    """
    if watch and app.as_json:
        raise UsageError(
            "--watch redraws a terminal and cannot be one JSON document", remedy="leave out one of the two"
        )
    app.connect_ahead()
    if len(services := app.services()) > 1:
        return status_of_all(app, services, watch, interval, verbose, strict)
    with app.session("status", meanwhile=["deployer.inspect.status"]) as session:
        from deployer.inspect.status import status as current_status

        load_in_background(["deployer.report.service_view", "deployer.cli.console"])  # /health takes a second
        report = current_status(session)
        from deployer.report.service_view import status_view

        if watch:
            report = keep_watching(app, report, lambda: current_status(session), status_view, interval)
        else:
            app.show(report.as_json(), status_view(report, verbose=verbose))
    return status_code(report, strict)


def status_code(report: StatusReport, strict: bool) -> int:
    """Return the exit code of a service's status; ``strict``: 10 if the host differs from its live release."""
    if report.unattended or not (report.health.ok or report.gave_way):
        return 6
    return 10 if strict and report.drift else 0


def status_of_all(
    app: App, services: Sequence[ServiceConfig], watch: bool, interval: float, verbose: bool, strict: bool
) -> int:
    """Show the status of several services side by side; return the worst exit code."""
    from deployer.cli.every import fleet, show_every
    from deployer.inspect.every import exit_code
    from deployer.inspect.status import StatusReport
    from deployer.inspect.status import status as current_status
    from deployer.report.every_view import lines_view, status_line
    from deployer.report.service_view import status_view

    code = partial(status_code, strict=strict)
    if watch:
        with fleet(app, "status", services) as every:
            looks = keep_watching(
                app,
                every.look(current_status),
                lambda: every.look(current_status),
                lambda looks: lines_view(looks, status_line),
                interval,
            )
        return exit_code(looks, code)
    return show_every(
        app,
        "status",
        services,
        current_status,
        document=StatusReport.as_json,
        line=status_line,
        code=code,
        whole=partial(status_view, verbose=True) if verbose else None,
    )


def keep_watching(
    app: App, report: T, look: Callable[[], T], view: Callable[[T], RenderableType], interval: float
) -> T:
    """Look and show again and again until Ctrl-C; return the last. Off a terminal each look is printed below."""
    from rich.live import Live

    console = app.console
    if not console.is_terminal:
        try:
            while True:
                console.print(view(report))
                time.sleep(interval)
                report = look()
        except KeyboardInterrupt:
            return report
    try:
        with Live(view(report), console=console, screen=True) as live:
            while True:
                time.sleep(interval)
                report = look()
                live.update(view(report), refresh=True)
    except KeyboardInterrupt:
        console.print(view(report))
    return report


@click.command()
@click.argument("release", required=False, type=click.IntRange(min=0))
@click.option("--defaults", is_flag=True, help="With RELEASE: include arguments that nobody requested.")
@common_options
@pass_app
def history(app: App, release: int | None, defaults: bool) -> int:
    """List the releases of a service, the newest first.

    For each: what was tried, what came of it, how fast it was. With the number of a release: what was in effect in
    its server, argument by argument. Without -s all services of the inventory are listed, a line each.

    \b
    Examples:
      deployer history
      deployer history 2
      deployer history 2 --defaults
    """
    if defaults and release is None:
        raise UsageError("--defaults shows the arguments of one release", remedy="name it: deployer history 2")
    if release is None and len(services := app.services()) > 1:
        from deployer.cli.every import show_every
        from deployer.inspect.history import History, history_of
        from deployer.report.every_view import history_line

        return show_every(app, "history", services, history_of, document=History.as_json, line=history_line)
    with app.session("history") as session:
        from deployer.inspect.history import history_of, release_report

        if release is not None:
            from deployer.report.service_view import release_view

            report = release_report(session, release)
            app.show(report.as_json(), release_view(report, defaults=defaults))
            return 0
        releases = history_of(session)
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
