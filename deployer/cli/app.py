"""One run of the program: its settings and inventory, the way to a host, and where its output goes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.output import print_json
from deployer.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from deployer.config.inventory import HostConfig, Inventory, ServiceConfig
    from deployer.config.profile import Profile
    from deployer.config.settings import Settings
    from deployer.deploy.reporter import Reporter
    from deployer.deploy.session import Session
    from deployer.host.ahead import Ahead, Memory
    from deployer.host.protocol import Host
    from deployer.records.host import Hold


#: Commands that show a host's hold in their own way.
SHOW_HOLD = ("status", "hold")


class App:
    """What the commands work with. Everything is loaded on first use: `--help` needs none of it."""

    def __init__(self, flags: dict[str, Any] | None = None) -> None:
        #: Options that every command takes, as given on the command line.
        self.flags = flags or {}
        #: Whether a file named ``-`` is written to stdout.
        self.stdout_taken = False
        self._memory: Memory | None = None
        self._ahead: Ahead | None = None
        #: Held while a person is asked: hosts that are connected side by side ask one after the other.
        self._asking = threading.Lock()

    @cached_property
    def settings(self) -> Settings:
        from deployer.config.settings import load_settings

        if not has_working_directory():
            raise ConfigError("the working directory no longer exists", remedy="change to another one")
        settings = load_settings(self.flags)
        if "inventory" in self.flags and settings.inventory is not None and not settings.inventory.exists():
            from deployer.config.inventory import load_inventory

            load_inventory(settings.inventory)  # says so, also in a command that would not have needed it
        return settings

    @cached_property
    def inventory(self) -> Inventory:
        from deployer.config.inventory import load_inventory

        path = self.settings.inventory
        if path is None:
            from deployer.resources import shipped

            raise ConfigError(
                "no inventory given",
                remedy="give one with -i FILE, DEPLOYER_INVENTORY, or `inventory = ...` in deployer.toml "
                f"(an example: {shipped('inventories') / 'example.toml'})",
            )
        return load_inventory(path)

    def service(self) -> ServiceConfig:
        """The service of -s, or the only one of the inventory."""
        return self.inventory.service(self.settings.service)

    def services(self, host: str | None = None) -> list[ServiceConfig]:
        """The service of -s, else all; those on ``host`` only if one is named. UsageError if none is left."""
        inventory = self.inventory
        named = [self.service()] if self.settings.service else list(inventory.services.values())
        if host is None:
            return named
        name = inventory.host(host).name
        selected = [service for service in named if service.host == name]
        if not selected:
            raise UsageError(
                f"no service is on host {name}",
                remedy="; ".join(f"{service.name} is on {service.host}" for service in named)
                or f'add a service with host = "{name}" to the inventory',
            )
        return selected

    def profile(self, name: str) -> Profile:
        from deployer.config.profile import load_profile

        return load_profile(name, self.profile_folders())

    def profile_folders(self) -> list[Path]:
        """The site's own profiles first, then the shipped ones."""
        from deployer.config.profile import profile_folders

        return profile_folders(self.settings.profiles)

    def template_folders(self) -> list[Path]:
        """The site's own templates first, then the shipped ones."""
        from deployer.config.files import template_folders

        return template_folders(self.settings.templates)

    def flags_folder(self) -> Path | None:
        """The folder of flag tables learned from hosts: as set, else beside the inventory. It need not exist."""
        settings = self.settings
        if settings.flags is not None or settings.inventory is None:
            return settings.flags
        return settings.inventory.parent / "flags"

    # -- hosts --------------------------------------------------------------------------------------------------

    def connect(self, host: HostConfig, *, meanwhile: Sequence[str] = ()) -> Host:
        """Open a connection, and import the modules ``meanwhile``.

        Prompts for a sudo password if sudo requires one and there is a terminal.
        """
        from deployer.host.connect import connect

        def prompt_for_password(prompt: str) -> str:
            try:
                with self._asking:
                    return str(click.prompt(prompt, hide_input=True, err=True))
            except UnicodeDecodeError as error:
                raise UsageError("the password is not valid text in this terminal's encoding") from error

        return connect(
            host.destination,
            password_prompt=prompt_for_password if self.interactive else None,
            waiting=lambda: load_in_background(meanwhile),  # no sooner: the key exchange needs the processor, too
        )

    def connect_ahead(self) -> None:
        """Begin to connect to the host that the same files led to before; `session` uses it if they still do.

        Of use to a command that asks for /health first: that is requested, too.
        """
        from deployer.host.ahead import Ahead, Memory

        if has_working_directory():
            self._memory = Memory(self.flags)
            place = self._memory.recall()
            self._ahead = Ahead(place) if place is not None else None

    def _reach(self, service: ServiceConfig, config: HostConfig, meanwhile: Sequence[str]) -> Host:
        """Return the connection that was begun ahead, if it leads to the service's host, else a new one."""
        memory, ahead = self._memory, self._ahead
        self._memory = self._ahead = None
        host: Host | None = None
        if ahead is not None and ahead.destination == config.destination:
            host = ahead.host()
        elif ahead is not None:
            ahead.drop()
        host = host or self.connect(config, meanwhile=meanwhile)
        if memory is not None and config.transport == "ssh" and self.settings.inventory is not None:
            files = [Path.cwd() / ".env", Path.cwd() / "deployer.toml", self.settings.inventory.absolute()]
            memory.keep(config.destination, service.bind, service.port, files)
        return host

    @contextmanager
    def session(
        self, command: str, service: ServiceConfig | None = None, *, meanwhile: Sequence[str] = ()
    ) -> Iterator[Session]:
        """A session with the host of ``service`` (default: the service of -s, or the only one).

        ``meanwhile`` are modules to import while the connection is made.
        """
        service = service or self.service()
        config = self.inventory.host(service.host)
        templates, learned = self.template_folders(), self.flags_folder()
        first = [self._reach(service, config, ("deployer.deploy.session", *meanwhile))]

        def connect(host: HostConfig) -> Host:
            return first.pop() if first else self.connect(host)

        from deployer.deploy.session import Session

        rivals = self.inventory.rivals(service)
        with Session(
            service, config, connect, command=command, templates=templates, learned=learned, rivals=rivals
        ) as session:
            yield session
        if session.hold is not None and command not in SHOW_HOLD:
            self.note_hold(config.name, session.hold)

    def note_hold(self, host: str, hold: Hold) -> None:
        self.errors.print(f"note: {host} is {hold}", markup=False, highlight=False)

    @property
    def interactive(self) -> bool:
        """Whether the user can be asked a question."""
        try:
            return not self.as_json and sys.stdin is not None and sys.stdin.isatty()
        except ValueError:  # closed
            return False

    # -- output -------------------------------------------------------------------------------------------------

    @property
    def as_json(self) -> bool:
        """Whether output is JSON, as requested on the command line or set; known even if the settings are invalid."""
        return bool(self.flags.get("json")) or ("settings" in self.__dict__ and self.settings.json)

    @property
    def console(self) -> Console:
        """Where words go: stdout, or stderr if a document or a file is written to stdout."""
        return self._console(stderr=self.as_json or self.stdout_taken)

    @property
    def errors(self) -> Console:
        return self._console(stderr=True)

    def _console(self, *, stderr: bool) -> Console:
        from deployer.cli.console import make_console

        colour = self.settings.color if "settings" in self.__dict__ else "auto"
        return make_console(stderr=stderr, colour=colour)

    def give_stdout(self, *paths: Path | None) -> None:
        """Send words to stderr if one of the files is ``-``. Raise UsageError with --json."""
        self.stdout_taken = Path("-") in paths
        if self.stdout_taken and self.as_json:
            raise UsageError(
                "stdout cannot hold a JSON document and a file named -",
                remedy="name a file, or leave out --json",
            )

    def reporter(self) -> Reporter:
        if self.as_json and not (sys.stderr and sys.stderr.isatty()):
            from deployer.deploy.reporter import Reporter

            return Reporter()
        from deployer.report.terminal import TerminalReporter

        stream = sys.stderr if self.as_json or self.stdout_taken else sys.stdout
        return TerminalReporter(lambda: self.console, live=bool(stream and stream.isatty()))

    def show(self, document: dict[str, Any], view: Any) -> None:
        """Print one document: as JSON on stdout, or as a person reads it."""
        if self.as_json:
            print_json(document)
        else:
            self.console.print(view)


def has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def load_in_background(modules: Sequence[str]) -> None:
    """Import modules in a thread; whoever needs one imports it as well, and meets what went wrong."""

    def load() -> None:
        with suppress(Exception):
            for module in modules:
                import_module(module)

    threading.Thread(target=load, name="imports", daemon=True).start()
