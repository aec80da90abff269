"""`deployer doctor`: what may make a running service slower or worse than it could be."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import click

from deployer.cli.common import App, Seconds, common_options, pass_app
from deployer.config.profile import Profile, load_profile, profile_names
from deployer.errors import ConfigError
from deployer.inspect.doctor import judge
from deployer.inspect.doctor.collect import ASKED, collect
from deployer.report.doctor_view import doctor_view


@click.command()
@click.option(
    "--seconds",
    type=Seconds(min=0.0, max=60.0),
    default=5.0,
    show_default=True,
    help="How long GPUs, connections and memory are watched.",
)
@common_options
@pass_app
def doctor(app: App, seconds: float) -> int:
    """Look at a running service and say what may make it slower or worse than it could be, and what to try.

    Changes nothing and generates nothing, but for the one token of /health. Exits with 6 where nothing healthy
    serves, else with 0; every finding is explained in docs/doctor.md.

    \b
    Examples:
      deployer doctor
      deployer doctor --seconds 20
      deployer doctor --json | jq '.findings[].id'
    """
    began = time.monotonic() - process_age()
    profiles = _profiles(app)
    with app.session("doctor") as session:
        evidence = collect(session, seconds=seconds, profiles=profiles, spent=time.monotonic() - began)
    diagnosis = judge(evidence)
    document = {
        "service": evidence.service,
        "host": evidence.host,
        "release": evidence.release,
        "profile": evidence.profile if evidence.release else None,
        "seconds": round(time.monotonic() - began, 1),
        "watched": round(evidence.watched, 1),
        "asked": list(ASKED),
        **diagnosis.as_dict(),
    }
    app.show(document, doctor_view(document, asked=seconds))
    return 0 if diagnosis.serving else 6


def process_age() -> float:
    """Seconds since this process began, its own start included; 0 where the system does not tell (it is Linux that
    does)."""
    with suppress(OSError, ValueError, IndexError):
        fields = (
            Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    return 0.0


def _profiles(app: App) -> list[Profile]:
    """The profiles that could be tried instead; one that cannot be read is none."""
    folders, found = app.profile_folders(), []
    for name in profile_names(folders):
        with suppress(ConfigError):
            found.append(load_profile(name, folders))
    return found
