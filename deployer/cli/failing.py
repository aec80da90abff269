"""How a run ends that fails: one paragraph or one JSON document, and a report if it was a bug."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deployer.cli.app import App, has_working_directory
from deployer.cli.output import print_json
from deployer.errors import DeployerError, Interrupted


def print_error(app: App, error: DeployerError) -> None:
    """Print what happened, where, why, and what to do."""
    if app.as_json:
        print_json({"error": error.as_dict(), "exit_code": error.exit_code})
        return
    from rich.markup import escape

    console = app.errors
    console.print(f"[red]error:[/red] {escape(error.message)}")
    if error.remedy:
        console.print(f"[bold]remedy:[/bold] {escape(error.remedy)}")


def print_bug(app: App, error: Exception) -> int:
    path = write_bug_report(error)
    bug = DeployerError(
        f"this is a bug in deployer: {type(error).__name__}: {error}",
        remedy=f"please report it with {path}; `deployer status` shows what is serving",
    )
    print_error(app, bug)
    return bug.exit_code


def write_bug_report(error: BaseException) -> Path:
    """Write the traceback to a file, without any configuration or environment."""
    import traceback

    from deployer import __version__

    name = f"deployer-bug-{os.getpid()}.txt"
    path = Path(name).absolute() if has_working_directory() else Path("deployer-bug.txt")
    text = "".join(traceback.format_exception(error))
    body = f"deployer {__version__}, Python {sys.version.split()[0]}\n\n{text}"
    try:
        path.write_text(body, encoding="utf-8")
    except OSError:
        sys.stderr.write(body)
    return path


def interrupted() -> Interrupted:
    """A Ctrl-C outside a change."""
    return Interrupted("interrupted; nothing was changed", remedy="`deployer status` shows what is serving")
