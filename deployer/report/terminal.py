"""The steps of a change, as a person at a terminal (or in a log file) reads them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from deployer.deploy.reporter import Reporter
from deployer.records.step import STEP_TITLES, Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from deployer.deploy.wait import WaitUpdate
    from deployer.report.launch_view import LaunchView

_WIDTH = max(len(title) for title in STEP_TITLES.values())


class TerminalReporter(Reporter):
    """Prints one line per step: a mark, its name, its result, how long it took. Long steps show their progress.

    On a terminal the running step is a moving line that the finished one replaces; elsewhere (a pipe, a CI log) it
    prints finished lines, and progress now and then; ``console`` is then not made before the first of them.
    """

    def __init__(self, console: Callable[[], Console], *, live: bool) -> None:
        self._make_console = console
        self._live = live
        self._title = ""
        self._began = 0.0
        self._status: Status | None = None
        self._launch: LaunchView | None = None
        self._last_progress = 0.0

    @cached_property
    def _console(self) -> Console:
        return self._make_console()

    def step(self, step: Step) -> None:
        self.close()
        self._title = STEP_TITLES[step]
        self._began = time.monotonic()
        self._last_progress = self._began
        self._spin("")

    def done(self, text: str) -> None:
        self._line("[green]✓[/green]", text)

    def failed(self, text: str) -> None:
        self._line("[red]✗[/red]", text)

    def note(self, text: str) -> None:
        self._print(f"[dim]·[/dim] {escape(text)}")

    def warn(self, text: str) -> None:
        self._print(f"[yellow]![/yellow] {escape(text)}")

    def launch(self, update: WaitUpdate) -> None:
        if self._launch is None:
            from deployer.report.launch_view import LaunchView

            self._stop_status()
            self._launch = LaunchView(self._console)
        self._launch.update(update)

    def progress(self, text: str) -> None:
        if self._live:
            self._spin(text)
            return
        now = time.monotonic()
        if now - self._last_progress >= 10.0:
            self._last_progress = now
            self._print(f"  {escape(self._title)}: {escape(text)}")

    def close(self) -> None:
        self._stop_status()
        if self._launch is not None:
            self._launch.close()
            self._launch = None

    def _line(self, mark: str, text: str) -> None:
        self.close()
        seconds = time.monotonic() - self._began
        took = f" [dim]({seconds:.1f} s)[/dim]" if seconds >= 0.5 else ""
        self._console.print(f"{mark} {self._title:<{_WIDTH}}  {escape(text)}{took}", highlight=False)

    def _print(self, text: str) -> None:
        spinning = self._status is not None
        self.close()
        self._console.print(text, highlight=False)
        if spinning:
            self._spin("")

    def _spin(self, text: str) -> None:
        if not self._live:
            return
        line = f"{self._title:<{_WIDTH}}  [dim]{escape(text)}[/dim]"
        if self._status is None:
            self._status = self._console.status(line, spinner="dots")
            self._status.start()
        else:
            self._status.update(line)

    def _stop_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def escape(text: str) -> str:
    """Return text without markup."""
    from rich.markup import escape  # with the console, and no sooner

    return escape(text)
