"""What all commands share: settings, the output's two forms, opening a session, errors as exit codes."""

from __future__ import annotations

import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape

from deployer.cli.output import make_console, print_json
from deployer.config.files import template_folders
from deployer.config.inventory import HostConfig, Inventory, ServiceConfig, load_inventory
from deployer.config.profile import Profile, load_profile, profile_folders
from deployer.config.settings import Settings, load_settings
from deployer.deploy.model import Outcome, failure_document
from deployer.deploy.reporter import Reporter, Silent
from deployer.deploy.session import Session
from deployer.errors import ConfigError, DeployerError, Interrupted, UsageError
from deployer.host.connect import connect
from deployer.host.protocol import Host
from deployer.report.terminal import TerminalReporter
from deployer.report.writing import STDOUT
from deployer.resources import shipped

F = TypeVar("F", bound=Callable[..., Any])
Json = dict[str, Any]


@dataclass
class App:
    """One run of the program: its options, and where its output goes."""

    flags: dict[str, Any] = field(default_factory=dict)
    #: Stdout belongs to a file that is named ``-``.
    stdout_taken: bool = False
    _settings: Settings | None = None
    _inventory: Inventory | None = None

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            if not _has_folder():
                raise ConfigError(
                    "the working directory does not exist any more", remedy="change to another one"
                )
            self._settings = load_settings(self.flags)
        return self._settings

    @property
    def as_json(self) -> bool:
        """Asked on the command line, or set; readable even where the settings are not."""
        return bool(self.flags.get("json")) or (self._settings is not None and self._settings.json)

    @property
    def console(self) -> Console:
        """Where words go: stdout, or stderr where stdout belongs to a document."""
        return self._console(stderr=self.as_json or self.stdout_taken)

    @property
    def errors(self) -> Console:
        return self._console(stderr=True)

    def _console(self, *, stderr: bool) -> Console:
        colour = self._settings.color if self._settings is not None else "auto"
        return make_console(stderr=stderr, colour=colour)

    @property
    def inventory(self) -> Inventory:
        if self._inventory is None:
            self._inventory = load_inventory(self._inventory_path())
        return self._inventory

    def _inventory_path(self) -> Path:
        path = self.settings.inventory
        if path is None:
            raise ConfigError(
                "no inventory is named",
                remedy="name one with -i FILE, DEPLOYER_INVENTORY, or `inventory = ...` in deployer.toml "
                f"(an example: {shipped('inventories') / 'example.toml'})",
            )
        return path

    def service(self, name: str | None = None) -> ServiceConfig:
        return self.inventory.service(name or self.settings.service)

    def profile_folders(self) -> list[Path]:
        """A site's own profiles come first, then the shipped ones."""
        return profile_folders(self.settings.profiles)

    def flags_folder(self) -> Path | None:
        """Where flag tables learned from hosts are: as set, else beside the inventory. It need not exist."""
        settings = self.settings
        if settings.flags is not None or settings.inventory is None:
            return settings.flags
        return settings.inventory.parent / "flags"

    def profile(self, name: str) -> Profile:
        return load_profile(name, self.profile_folders())

    def connect(self, host: HostConfig) -> Host:
        """Open a connection; the sudo password is the only thing that is ever asked for, and only at a terminal."""
        can_ask = at_terminal() and not self.as_json

        def ask(prompt: str) -> str:
            try:
                return str(click.prompt(prompt, hide_input=True, err=True))
            except UnicodeDecodeError as error:
                raise UsageError("what was typed is not text in this terminal's encoding") from error

        return connect(host, password_prompt=ask if can_ask else None)

    def session(self, command: str, service: ServiceConfig | None = None) -> Session:
        """A session with a service's host; without ``service`` with that of the service that is meant."""
        service = service or self.service()
        host = self.inventory.host(service.host)
        templates = template_folders(self.settings.templates)
        return Session(
            service, host, self.connect, command=command, templates=templates, learned=self.flags_folder()
        )

    def give_stdout(self, *paths: Path | None) -> None:
        """Where one of the files is ``-``, words go to stderr. UsageError: stdout is to hold a JSON document, too."""
        self.stdout_taken = STDOUT in paths
        if self.stdout_taken and self.as_json:
            raise UsageError(
                "stdout cannot hold a JSON document and a file named -",
                remedy="name a file, or leave out --json",
            )

    def reporter(self) -> Reporter:
        if self.as_json and not sys.stderr.isatty():
            return Silent()
        return TerminalReporter(self.console)

    def show(self, document: Json, view: Any) -> None:
        """One document: as JSON on stdout, or as a person reads it."""
        if self.as_json:
            print_json(document)
        else:
            self.console.print(view)


class Seconds(click.FloatRange):
    """A span of time within bounds: ``nan``, which no comparison refuses, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return found


def common_options(function: F) -> F:
    """Options every command takes, before or after its name."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value not in (None, False):
            context.ensure_object(App).flags[str(parameter.name)] = value
        return value

    options = [
        click.option(
            "-i",
            "--inventory",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=store,
            help="The inventory file (also DEPLOYER_INVENTORY).",
        ),
        click.option(
            "-s",
            "--service",
            expose_value=False,
            callback=store,
            help="The service; need not be named where there is only one.",
        ),
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=store,
            help="One JSON document on stdout, nothing else.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def pass_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the command its `App`."""
    return click.make_pass_decorator(App, ensure=True)(function)


def finish(app: App, outcome: Outcome) -> int:
    """Print an outcome in the form asked for and return its exit code."""
    from deployer.report.views import print_outcome

    if app.as_json:
        print_json(outcome.as_dict())
    else:
        print_outcome(app.console, outcome)
    return outcome.exit_code


def at_terminal() -> bool:
    """Whether somebody can be asked something."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False


def refused_outcome(error: DeployerError, service: str, profile: str | None) -> Outcome:
    """An error of `apply` or `rollback` in the shape that their JSON always has."""
    return Outcome(
        outcome=error.outcome,
        service=service,
        profile=profile,
        failure=failure_document(type(error).__name__, error.message, phase=error.phase, remedy=error.remedy),
        exit_code=error.exit_code,
        message=error.message,
    )


def print_error(app: App, error: DeployerError) -> None:
    """One paragraph: what, where, why, what to do."""
    if app.as_json:
        print_json({"error": error.as_dict(), "exit_code": error.exit_code})
        return
    console = app.errors
    console.print(f"[red]error:[/red] {escape(error.message)}")
    if error.remedy:
        console.print(f"[bold]remedy:[/bold] {escape(error.remedy)}")


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def write_bug_report(error: BaseException) -> Path:
    """Keep the traceback of a bug in a file; nothing of the configuration or the environment goes into it."""
    from deployer import __version__

    path = Path(f"deployer-bug-{os.getpid()}.txt").absolute() if _has_folder() else Path("deployer-bug.txt")
    text = "".join(traceback.format_exception(error))
    body = f"deployer {__version__}, Python {sys.version.split()[0]}\n\n{text}"
    try:
        path.write_text(body, encoding="utf-8")
    except OSError:
        sys.stderr.write(body)
    return path


def install_signals() -> None:
    """SIGTERM and a closed terminal mean the same as Ctrl-C: leave a known state behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def interrupted() -> Interrupted:
    """A Ctrl-C outside of a change: nothing was under way."""
    return Interrupted("interrupted; nothing was changed", remedy="`deployer status` shows what is serving")
