"""`hold`: keep everybody from changing a host for a while, with a reason."""

from __future__ import annotations

import click

from deployer.cli.app import App
from deployer.cli.options import Duration, common_options, pass_app
from deployer.errors import UsageError


@click.command()
@click.argument("reason", required=False)
@click.option("--for", "seconds", type=Duration(), help="End the hold by itself after this time, such as 90m or 2h.")
@click.option("--release", is_flag=True, help="End the hold.")
@common_options
@pass_app
def hold(app: App, reason: str | None, seconds: float | None, release: bool) -> int:
    """Put the host on hold: nobody changes it until the hold ends.

    Commands that would change the host or measure it exit with 4 and show REASON, those that only look show it as a
    note. A change that is under way goes on, and the host's guard still finishes one that was abandoned. The hold is
    kept on the host, over a reboot too.

    \b
    Examples:
      deployer hold "load test until noon" --for 2h
      deployer hold --release
    """
    if release == bool(reason):
        raise UsageError(
            "a hold needs a reason" if not release else "--release takes no REASON",
            remedy='for example: deployer hold "load test until noon" --for 2h; deployer hold --release',
        )
    if release and seconds is not None:
        raise UsageError("--for belongs to a new hold, not to --release", remedy="leave out one of the two")
    with app.session("hold") as session:
        from deployer.records.codec import encode

        host, service = session.host_config.name, session.service.name
        if reason:
            current = session.client.hold_set(service, session.owner, reason, seconds)
            app.show({"host": host, "hold": encode(current)}, f"{host} is {current}")
            return 0
        ended = session.client.hold_release(service)
        words = f"the hold is released: {ended.reason}" if ended else f"{host} is not on hold"
        app.show({"host": host, "hold": None, "released": encode(ended)}, words)
    return 0
