"""`deployer compare`: benchmarks against each other, with a verdict each."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from deployer.cli.common import App, common_options, pass_app
from deployer.errors import UsageError
from deployer.inspect.compare import Shelf, compare_words
from deployer.report.comparison_view import comparison_document, comparison_view
from deployer.report.interactive import library
from deployer.report.page import comparison_page
from deployer.report.writing import STDOUT, check_writable, replace


@click.command()
@click.argument("what", nargs=-1, metavar="WHAT WHAT...")
@click.option("--anyway", is_flag=True, help="Also what is not comparable: another model, workload or place.")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write it as one page to this file (- : stdout), too."
)
@click.option(
    "--interactive", is_flag=True, help="With --html: plots to zoom into, by plotly (an extra; 5 MB more)."
)
@common_options
@pass_app
def compare(app: App, what: tuple[str, ...], anyway: bool, html: Path | None, interactive: bool) -> int:
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
      deployer compare tp8 pp8 pp8-async --html page.html
      deployer compare tp8 pp8 pp8-async --html page.html --interactive
      deployer compare before.json pp8-async --json
    """
    if len(what) < 2:
        raise UsageError("compare takes at least two benchmarks", remedy="for example: deployer compare 1 2")
    if interactive and html is None:
        raise UsageError("--interactive is of the page", remedy="add --html FILE, or leave out --interactive")
    if html is not None:
        check_writable(html)
        app.give_stdout(html)
    plotly = library() if interactive else ""
    with ExitStack() as stack:
        found = compare_words(
            what, lambda: Shelf.of(stack.enter_context(app.session("compare"))), anyway=anyway
        )
    if html is not None:
        page = comparison_page(found, library=plotly)
        replace(html, page)
        size = len(page.encode("utf-8")) / 1000
        app.errors.print(f"written: {'stdout' if html == STDOUT else html} ({size:.0f} kB)", highlight=False)
    app.show(comparison_document(found), comparison_view(found))
    return 0
