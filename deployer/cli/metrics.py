"""`metrics`: the state of all services in Prometheus' text format."""

from __future__ import annotations

import sys

import click

from deployer.cli.app import App
from deployer.cli.options import common_options, pass_app
from deployer.cli.output import Unbreakable, print_json


@click.command()
@common_options
@pass_app
def metrics(app: App) -> int:
    """Print live releases, changes and guard actions as metrics.

    In Prometheus' text format, as each host writes them for node_exporter's textfile collector if its metrics_dir is
    set. Without -s all services of the inventory are asked; one whose host does not answer is an error on stderr.

    \b
    Example:
      deployer metrics
    """
    from deployer.cli.every import fleet
    from deployer.inspect.every import exit_code
    from deployer.inspect.metrics import Metrics, metrics_of, text_of
    from deployer.report.every_view import error_text

    with fleet(app, "metrics", app.services()) as every:
        looks = every.look(metrics_of)
    if app.as_json:
        documents = [look.as_json(Metrics.as_json) for look in looks]
        print_json({"services": documents} if len(documents) > 1 else documents[0])
    else:
        for look in looks:
            if look.error is not None:
                app.errors.print(f"{look.service.name}: {error_text(look.error)}", markup=False, highlight=False)
        out = Unbreakable(sys.stdout)
        out.write(text_of(looks))
        out.flush()
    return exit_code(looks, lambda _: 0)
