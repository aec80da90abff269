"""`deployer bench`: measure what runs now, keep and export the figures, compare them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.app import App
from deployer.cli.failing import print_error
from deployer.cli.options import FILE, Seconds, common_options, pass_app, wait_option

if TYPE_CHECKING:
    from deployer.deploy.session import Session
    from deployer.errors import DeployerError
    from deployer.inspect.measure import Measured

Json = dict[str, Any]


def _levels(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Parse a comma-separated list of concurrency levels such as ``8,32``."""
    if value is None:
        return None
    from deployer.config.bench import LEVEL_MAX

    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 4 for word in words):
        raise click.BadParameter(f"invalid levels {value!r}: expected a comma-separated list such as 8,32")
    levels = sorted(int(word) for word in words)
    if levels[0] < 1 or levels[-1] > LEVEL_MAX or len(set(levels)) < len(levels):
        raise click.BadParameter(f"levels must be distinct numbers from 1 to {LEVEL_MAX}")
    return levels


@click.command()
@click.option("--profile", metavar="PROFILE", help="Refuse if another profile runs (exit code 3).")
@click.option("--levels", metavar="N,N,...", callback=_levels, help="Concurrency levels, such as 8,32.")
@click.option("--requests", type=click.IntRange(1, 100_000), help="Minimum number of requests per pass.")
@click.option("--repeat", "repeats", type=click.IntRange(1, 20), help="Passes per level.")
@click.option("--prompt-tokens", type=click.IntRange(1, 1_000_000), help="Length of each prompt.")
@click.option("--output-tokens", type=click.IntRange(2, 100_000), help="Length of each answer.")
@click.option("--shared-prefix", type=click.IntRange(0, 1_000_000), help="Tokens that all prompts begin with.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed of the prompts.")
@click.option("--budget", type=Seconds(1, 86_400), help="Total time limit in seconds.")
@click.option("--place", type=click.Choice(["auto", "host", "operator"]), help="Where the load client runs.")
@click.option("--against", metavar="WHAT", help="Also compare with WHAT, named as in `compare`.")
@click.option("--export", type=FILE, help="Write one JSON line per request to this file (- : stdout).")
@click.option(
    "--export-bench-serving",
    type=FILE,
    help="Append one JSON line per level, in the format of sglang.bench_serving.",
)
@wait_option
@common_options
@pass_app
def bench(
    app: App,
    profile: str | None,
    against: str | None,
    export: Path | None,
    export_bench_serving: Path | None,
    wait: float,
    **wishes: Any,
) -> int:
    """Benchmark what runs now; keep the figures beside its release.

    `compare` names them 7@1, 7@2, ... Nothing that serves is changed, but clients share the server with the load. The
    host's lease is held meanwhile, so that neither an apply nor another benchmark disturbs it. Settings not given are
    those of the release's smoke benchmark, except that no passes are added for requests_at_least.
    Exits with 0 whatever the figures: a measurement is not a gate. Figures that cannot be kept or exported are shown
    all the same, and the exit code says what went wrong.

    \b
    Examples:
      deployer bench
      deployer bench --profile pp8 --levels 8,32,128 --repeat 3 --against tp8
      deployer bench --output-tokens 512 --export requests.jsonl --json
    """
    from deployer.inspect.measure import REASON
    from deployer.report.files import check_exports, write_exports

    settings = {name: value for name, value in wishes.items() if value is not None}
    check_exports(export, export_bench_serving)
    app.give_stdout(export, export_bench_serving)
    with app.session(REASON) as session:
        session.patience = wait
        document, view, measured = _measured(app, session, settings, against, profile)
    exported, unwritten = write_exports(measured.bench, measured.name, export, export_bench_serving)
    document["exports"] = [str(path) for path in exported]
    # The figures come first, whatever could not be done with them: they are minutes of a server's time.
    errors: list[DeployerError] = [*([measured.trouble] if measured.trouble else []), *unwritten]
    document["errors"] = [error.as_dict() for error in errors]
    app.show(document, view)
    for error in () if app.as_json else errors:
        print_error(app, error)
    return errors[0].exit_code if errors else 0


def _measured(
    app: App, session: Session, settings: Json, against: str | None, profile: str | None
) -> tuple[Json, Any, Measured]:
    from deployer.inspect.compare import BenchStore, compared, subjects
    from deployer.inspect.measure import measure
    from deployer.report.comparison_view import comparison_document, measured_view

    shelf = BenchStore.of(session)
    reference = subjects([against], lambda: shelf)[0] if against else None
    noise = shelf.noise() if reference else None  # now: the connection may not outlive the benchmark
    reporter = app.reporter()
    try:
        measured = measure(session, settings, reporter, shelf, profile=profile)
    finally:
        reporter.close()
    comparison = None
    if reference and noise:
        comparison = compared([reference, measured.subject()], noise, anyway=True)
    document: Json = {
        "service": session.service.name,
        "release": measured.release,
        "name": measured.name,
        "bench": measured.bench.as_json(),
        "about": measured.about.as_json(),
        "against": comparison_document(comparison) if comparison else None,
    }
    return document, measured_view(measured.name, measured.bench, comparison), measured
