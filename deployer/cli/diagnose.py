"""`deployer diagnose`: why a launch failed, from a file or from the host."""

from __future__ import annotations

import click

from deployer.cli.app import App
from deployer.cli.options import common_options, pass_app
from deployer.errors import UsageError


@click.command()
@click.argument("file", required=False, metavar="[FILE | -]")
@click.option("--release", type=int, metavar="N", help="The last start of release N, from the journal or its kept log.")
@click.option("--host", metavar="NAME", help="The current or last run of each service on this host.")
@common_options
@pass_app
def diagnose(app: App, file: str | None, release: int | None, host: str | None) -> int:
    """Say why a launch failed: phase, first cause, remedy, evidence.

    FILE is any SGLang log, from deployer or not: as the server printed it, or from journalctl, docker logs, kubectl
    logs or a syslog file; gzip, bzip2 and xz are unpacked, - is standard input. Of a log longer than 96 MiB only the
    first 24 and the last 72 MiB are read, and the report says so. Without FILE, the current or last run of the service
    is examined: its journal, its unit and the kernel's messages.

    If the log holds no failure, the report says how far the launch came. A failure that is not recognised is reported
    as unknown.

    Exits with 0 whatever the diagnosis, with 2 if FILE cannot be read.

    \b
    Examples:
      deployer diagnose server.log.gz
      journalctl -u sglang-kimi -b | deployer diagnose -
      deployer diagnose --release 7
      deployer diagnose --host gpu1
      deployer diagnose --json | jq -r .signature
    """
    given = {"FILE": file, "--release": release, "--host": host}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are different logs", remedy="leave out all but one")
    if host is not None:
        return of_host(app, host)
    from deployer.inspect.diagnose import of_file, of_release, of_service
    from deployer.report.diagnosis_view import diagnosis_view

    if file is not None:
        diagnosis = of_file(file)
    else:
        with app.session("diagnose") as session:
            diagnosis = of_service(session) if release is None else of_release(session, release)
    app.show(diagnosis.as_dict(), diagnosis_view(diagnosis))
    return 0


def of_host(app: App, name: str) -> int:
    """Show the diagnosis of each service on a host; that of a single one as without ``--host``."""
    from rich.console import Group
    from rich.text import Text

    from deployer.inspect.diagnose import of_service
    from deployer.report.diagnosis_view import diagnosis_view

    diagnoses = {}
    for service in app.services(name):
        with app.session("diagnose", service) as session:
            diagnoses[service.name] = of_service(session)
    if len(diagnoses) == 1:
        [only] = diagnoses.values()
        app.show(only.as_dict(), diagnosis_view(only))
    else:
        views = [Group(Text(title, style="bold"), diagnosis_view(item)) for title, item in diagnoses.items()]
        app.show({"services": {title: item.as_dict() for title, item in diagnoses.items()}}, Group(*views))
    return 0
