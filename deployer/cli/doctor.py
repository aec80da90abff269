"""`deployer doctor`: what may make a running service slower or worse than it could be."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deployer.cli.app import App
from deployer.cli.options import Seconds, common_options, pass_app
from deployer.errors import ConfigError

if TYPE_CHECKING:
    from deployer.config.profile import Profile
    from deployer.deploy.session import Session
    from deployer.inspect.doctor.checkup import Checkup


@click.command()
@click.option(
    "--seconds",
    type=Seconds(min=0.0, max=60.0),
    default=5.0,
    show_default=True,
    help="How long to watch GPUs, connections and memory.",
)
@common_options
@pass_app
def doctor(app: App, seconds: float) -> int:
    """Find what may slow down a running service, and what to try.

    Changes nothing and generates nothing, except for the one token of /health. Exits with 6 if nothing healthy
    serves, else with 0; docs/doctor.md explains every finding. Without -s all services of the inventory are examined,
    a line each.

    \b
    Examples:
      deployer doctor
      deployer doctor --seconds 20
      deployer doctor --json | jq '.findings[].id'
    """
    began = time.monotonic() - process_age()
    profiles = readable_profiles(app)

    def look(session: Session) -> Checkup:
        from deployer.inspect.doctor.checkup import examine
        from deployer.inspect.doctor.collect import collect

        evidence = collect(session, seconds=seconds, profiles=profiles, spent=time.monotonic() - began)
        return replace(examine(evidence), seconds=time.monotonic() - began)

    if len(services := app.services()) > 1:
        from deployer.cli.every import show_every
        from deployer.inspect.doctor.checkup import Checkup
        from deployer.report.every_view import doctor_line

        document, line = Checkup.as_json, doctor_line
        return show_every(app, "doctor", services, look, document=document, line=line, code=doctor_code)
    from deployer.report.doctor_view import doctor_view

    with app.session("doctor") as session:
        checkup = look(session)
    app.show(checkup.as_json(), doctor_view(checkup, requested=seconds))
    return doctor_code(checkup)


def doctor_code(checkup: Checkup) -> int:
    """Return the exit code of one service's checkup."""
    return 0 if checkup.serving else 6


def process_age() -> float:
    """Return the seconds since this process was started, interpreter included; 0 if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    return 0.0


def readable_profiles(app: App) -> list[Profile]:
    """The profiles that could be tried instead, without those that cannot be read."""
    from deployer.config.profile import load_profile, profile_names

    folders, profiles = app.profile_folders(), []
    for name in profile_names(folders):
        with suppress(ConfigError):
            profiles.append(load_profile(name, folders))
    return profiles
