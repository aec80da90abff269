"""`deployer compare`: benchmarks against each other, with a verdict on each."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from deployer.cli.app import App
from deployer.cli.options import FILE, common_options, pass_app
from deployer.errors import UsageError


@click.command()
@click.argument("what", nargs=-1, metavar="WHAT WHAT...")
@click.option("--anyway", is_flag=True, help="Compare even if model, workload or the client's place differ.")
@click.option("--html", type=FILE, help="Also write the comparison to this file as one page (- : stdout).")
@click.option("--interactive", is_flag=True, help="With --html: plots that can be zoomed (an extra; 5 MB more).")
@common_options
@pass_app
def compare(app: App, what: tuple[str, ...], anyway: bool, html: Path | None, interactive: bool) -> int:
    """Compare benchmarks, with a verdict on every difference.

    The first WHAT is the reference. WHAT is a release (7, 0007-pp8), a later benchmark of one (7@1), a profile (its
    newest proven starts with one configuration, taken together), a file (bench.json, or the output of `bench --json`),
    or several of these joined with +, as starts of one.

    Exits with 3 if they are not comparable: another model, other lengths, another place of the client.

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
        raise UsageError(
            "--interactive applies to the page of --html",
            remedy="add --html FILE, or leave out --interactive",
        )
    from deployer.inspect.compare import BenchStore, compare_words
    from deployer.report.comparison_view import comparison_document, comparison_view
    from deployer.report.files import STDOUT, check_writable, replace

    library = ""
    if html is not None:
        check_writable(html)
        app.give_stdout(html)
        if interactive:
            from deployer.report.interactive import library as plotly

            library = plotly()
    with ExitStack() as stack:
        comparison = compare_words(
            what, lambda: BenchStore.of(stack.enter_context(app.session("compare"))), anyway=anyway
        )
    if html is not None:
        from deployer.report.page import comparison_page

        page = comparison_page(comparison, library=library)
        replace(html, page)
        size = len(page.encode("utf-8")) / 1000
        app.errors.print(f"written: {'stdout' if html == STDOUT else html} ({size:.0f} kB)", highlight=False)
    app.show(comparison_document(comparison), comparison_view(comparison))
    return 0
