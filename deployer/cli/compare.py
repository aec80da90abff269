"""`deployer compare`: benchmarks against each other, with a verdict each."""

from __future__ import annotations

from contextlib import ExitStack

import click

from deployer.bench.comparison import compare as compare_subjects
from deployer.bench.comparison import differences
from deployer.bench.noise import Noise
from deployer.cli.common import App, common_options, pass_app
from deployer.deploy.compare import Shelf, different_arguments, subjects
from deployer.errors import Refused, UsageError
from deployer.report.comparison_view import Compared, comparison_document, comparison_view


def gather(app: App, words: tuple[str, ...], *, anyway: bool) -> Compared:
    """Find what the words mean (asking the host only where one is no file) and compare. Refused: not comparable."""
    opened: list[Shelf] = []
    with ExitStack() as stack:

        def shelf() -> Shelf:
            if not opened:
                opened.append(Shelf.of(stack.enter_context(app.session("compare"))))
            return opened[0]

        found = subjects(words, shelf)
        reference, others = found[0], found[1:]
        differ = tuple(f"{other.name}: {text}" for other in others for text in differences(reference, other))
        if differ and not anyway:
            raise Refused(
                f"not comparable with {reference.name}: {'; '.join(differ)}",
                remedy="compare what was measured alike, or add --anyway to see the figures side by side",
                detail={"differences": list(differ)},
            )
        noise = opened[0].noise() if opened else Noise()
    return Compared(
        subjects=tuple(found),
        comparisons=tuple(compare_subjects(reference, other, noise) for other in others),
        noise=noise,
        differences=differ,
        arguments=tuple(different_arguments(found)),
    )


@click.command()
@click.argument("what", nargs=-1, metavar="WHAT WHAT...")
@click.option("--anyway", is_flag=True, help="Also what is not comparable: another model, workload or place.")
@common_options
@pass_app
def compare(app: App, what: tuple[str, ...], anyway: bool) -> int:
    """Put benchmarks side by side, with a verdict on every difference. The first is the reference.

    WHAT is a release (7, 0007-pp8), a benchmark made later (7@1), a profile (its newest starts of one
    configuration, taken together), a file (bench.json, or what `bench --json` printed), or several of these with +
    between, as starts of one.

    Exits with 3 where they are not comparable: another model, other lengths, another place of the client.

    \b
    Examples:
      deployer compare tp8 pp8-async
      deployer compare 3 7 7@1
      deployer compare 3+4 7+8
      deployer compare before.json pp8-async --json
    """
    if len(what) < 2:
        raise UsageError("compare takes at least two benchmarks", remedy="for example: deployer compare 1 2")
    found = gather(app, what, anyway=anyway)
    app.show(comparison_document(found), comparison_view(found))
    return 0
