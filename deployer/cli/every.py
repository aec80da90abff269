"""Commands that look at every service of the inventory: all hosts side by side, a line for each service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from deployer.cli.app import SHOW_HOLD, App

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deployer.config.inventory import ServiceConfig
    from deployer.deploy.session import Session
    from deployer.inspect.every import Fleet
    from deployer.report.every_view import Line

T = TypeVar("T")


@contextmanager
def fleet(app: App, command: str, services: Sequence[ServiceConfig]) -> Iterator[Fleet]:
    """The services with their hosts, each of which is connected once."""
    from deployer.inspect.every import Fleet

    every = Fleet(
        services,
        app.inventory.host,
        app.connect,
        command=command,
        templates=app.template_folders(),
        learned=app.flags_folder(),
    )
    with same_terminal(), every:
        yield every
    if command not in SHOW_HOLD:
        for host, hold in every.holds.items():
            app.note_hold(host, hold)


@contextmanager
def same_terminal() -> Iterator[None]:
    """Leave the terminal as it was: a thread that reads a password there does not end with the command."""
    import termios

    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, AttributeError, OSError, TypeError, ValueError):  # not a terminal, or none at all
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def show_every(
    app: App,
    command: str,
    services: Sequence[ServiceConfig],
    work: Callable[[Session], T],
    *,
    document: Callable[[T], dict[str, Any]],
    line: Callable[[T], Line],
    code: Callable[[T], int] = lambda _: 0,
    whole: Callable[[T], RenderableType] | None = None,
) -> int:
    """Do ``work`` for each service, show what came of it, and return the worst exit code.

    For a person each answer is a ``line``, or with ``whole`` that view of it.
    """
    from deployer.inspect.every import exit_code
    from deployer.report.every_view import lines_view, whole_view

    with fleet(app, command, services) as every:
        looks = every.look(work)
    view = whole_view(looks, whole) if whole is not None else lines_view(looks, line)
    app.show({"services": [look.as_json(document) for look in looks]}, view)
    return exit_code(looks, code)
