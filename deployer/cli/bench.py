"""`deployer bench`: measure what runs now, keep and export the figures, compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deployer.cli.common import App, Seconds, common_options, pass_app, print_error
from deployer.config.bench import LEVEL_MAX
from deployer.deploy.model import Json
from deployer.deploy.session import Session
from deployer.errors import DeployerError
from deployer.inspect.compare import Shelf, compared, subjects
from deployer.inspect.measure import REASON, measure
from deployer.report.comparison_view import comparison_document, measured_view
from deployer.report.exports import check_exports, write_exports


def _levels(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Levels of concurrency with commas between, such as ``8,32``."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 4 for word in words):
        raise click.BadParameter(f"{value!r} are no levels; write them with commas between, such as 8,32")
    levels = sorted(int(word) for word in words)
    if levels[0] < 1 or levels[-1] > LEVEL_MAX or len(set(levels)) < len(levels):
        raise click.BadParameter(f"levels are distinct numbers from 1 to {LEVEL_MAX}")
    return levels


def _count(least: int, most: int) -> click.IntRange:
    return click.IntRange(least, most)


FILE = click.Path(path_type=Path)


@click.command()
@click.option("--profile", metavar="PROFILE", help="Refuse where another one runs (exit code 3).")
@click.option("--levels", metavar="N,N,...", callback=_levels, help="Levels of concurrency, such as 8,32.")
@click.option("--requests", type=_count(1, 100_000), help="Fewest requests of a pass.")
@click.option("--repeat", "repeats", type=_count(1, 20), help="Passes of a level.")
@click.option("--prompt-tokens", type=_count(1, 1_000_000), help="Length of a prompt.")
@click.option("--output-tokens", type=_count(2, 100_000), help="Length of an answer.")
@click.option("--shared-prefix", type=_count(0, 1_000_000), help="Tokens that all prompts begin with.")
@click.option("--seed", type=_count(0, 2**31 - 1), help="Seed of the prompts.")
@click.option("--budget", type=Seconds(1, 86_400), help="Seconds for all of it.")
@click.option("--place", type=click.Choice(["auto", "host", "operator"]), help="Where the load comes from.")
@click.option("--against", metavar="WHAT", help="Also compare with this, as `compare` names it.")
@click.option("--export", type=FILE, help="Write a JSON line for each request to this file (- : stdout).")
@click.option(
    "--export-bench-serving",
    type=FILE,
    help="Append a JSON line a level as sglang.bench_serving does.",
)
@common_options
@pass_app
def bench(
    app: App,
    profile: str | None,
    against: str | None,
    export: Path | None,
    export_bench_serving: Path | None,
    **wishes: Any,
) -> int:
    """Measure what runs now, and keep the figures beside its release (as 7@1, 7@2, ... for `compare`).

    Nothing that serves is changed; clients share the server with the load. The host's lease is held meanwhile, so
    that neither an apply nor another benchmark disturbs it. What is not said is as in the release's smoke benchmark,
    but no passes are added for requests_at_least.
    Exits with 0 whatever the figures: a measurement is no gate. Figures that cannot be kept or exported are shown all
    the same, with the code of what went wrong.

    \b
    Examples:
      deployer bench
      deployer bench --profile pp8 --levels 8,32,128 --repeat 3 --against tp8
      deployer bench --output-tokens 512 --export requests.jsonl --json
    """
    asked = {name: value for name, value in wishes.items() if value is not None}
    check_exports(export, export_bench_serving)
    app.give_stdout(export, export_bench_serving)
    with app.session(REASON) as session:
        document, view, trouble = _measured(app, session, asked, against, profile)
    exported, unwritten = write_exports(document, export, export_bench_serving)
    document["exports"] = [str(path) for path in exported]
    # The figures come first, whatever could not be done with them: they are minutes of a server's time.
    errors: list[DeployerError] = [*([trouble] if trouble else []), *unwritten]
    document["errors"] = [error.as_dict() for error in errors]
    app.show(document, view)
    for error in () if app.as_json else errors:
        print_error(app, error)
    return errors[0].exit_code if errors else 0


def _measured(
    app: App, session: Session, asked: Json, against: str | None, profile: str | None
) -> tuple[Json, Any, DeployerError | None]:
    shelf = Shelf.of(session)
    reference = subjects([against], lambda: shelf)[0] if against else None
    noise = shelf.noise() if reference else None  # now: the connection may not outlive the benchmark
    reporter = app.reporter()
    try:
        done = measure(session, asked, reporter, shelf, profile=profile)
    finally:
        reporter.close()
    found = compared([reference, done.subject()], noise, anyway=True) if reference and noise else None
    document: Json = {
        "service": session.service.name,
        "release": done.release,
        "name": done.name,
        "bench": done.bench,
        "about": done.about,
        "against": comparison_document(found) if found else None,
    }
    return document, measured_view(done.name, done.bench, found), done.trouble
