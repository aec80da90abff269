"""`diagnose`: why a launch failed, from a file or from the host."""

from __future__ import annotations

import click

from deployer.cli.common import App, common_options, pass_app
from deployer.deploy import diagnose as diagnose_
from deployer.errors import UsageError
from deployer.report.diagnosis_view import diagnosis_view


@click.command()
@click.argument("file", required=False, metavar="[FILE | -]")
@click.option(
    "--release",
    type=int,
    metavar="N",
    help="Release N's last start, from the host's journal or what was kept.",
)
@common_options
@pass_app
def diagnose(app: App, file: str | None, release: int | None) -> int:
    """Say why a launch failed: phase, first cause, remedy, the lines that prove it.

    FILE is any SGLang log, of this tool's or not: as the server printed it, or from journalctl, docker logs, kubectl
    logs or a syslog file; gzip, bzip2 and xz are unpacked, - is standard input. Of a log longer than 96 MiB the first
    24 and the last 72 are read, and that is said. Without FILE the service's run under
    way is looked at, or its last one: its journal, its unit and the kernel's messages.

    A log without a failure is said to be one, and how far it came; what is not recognised is called unknown.

    \b
    Exits with 0 whatever it finds, with 2 where FILE cannot be read.

    \b
    Examples:
      deployer diagnose server.log.gz
      journalctl -u sglang-kimi -b | deployer diagnose -
      deployer diagnose --release 7
      deployer diagnose --json | jq -r .signature
    """
    if file is not None and release is not None:
        raise UsageError("FILE and --release are two different logs", remedy="leave one of the two out")
    if file is not None:
        found = diagnose_.of_file(file)
    else:
        with app.session("diagnose") as session:
            found = (
                diagnose_.of_service(session) if release is None else diagnose_.of_release(session, release)
            )
    app.show(found.as_dict(), diagnosis_view(found))
    return 0
