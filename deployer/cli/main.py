"""The `deployer` command: parse, call, show. Decisions are made elsewhere."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points

import click

from deployer import __version__
from deployer.cli.common import (
    App,
    common_options,
    install_signals,
    interrupted,
    print_error,
    write_bug_report,
)
from deployer.cli.output import Unbreakable
from deployer.errors import DeployerError, UsageError

#: The commands: name, and the module that has it.
COMMANDS = {
    "check": "deployer.cli.check",
    "apply": "deployer.cli.change",
    "rollback": "deployer.cli.change",
    "resume": "deployer.cli.change",
    "converge": "deployer.cli.change",
    "plan": "deployer.cli.change",
    "status": "deployer.cli.look",
    "history": "deployer.cli.look",
    "logs": "deployer.cli.look",
    "profiles": "deployer.cli.look",
    "bench": "deployer.cli.bench",
    "compare": "deployer.cli.compare",
    "diagnose": "deployer.cli.diagnose",
    "doctor": "deployer.cli.doctor",
    "sglang": "deployer.cli.sglang",
}
#: Entry points of packages that bring commands of their own, such as `deployer rehearse`.
PLUGINS = "deployer.commands"
#: Those that may change a host.
CHANGING = ("apply", "rollback", "resume", "converge")
EXIT_CODES = """\b
Exit codes:
  0  done, or nothing to do          5  the candidate failed, the live profile serves again
  1  a bug in deployer               6  nothing healthy is serving
  2  usage, configuration, consent   7  the benchmark cannot tell; not promoted
  3  refused, nothing was changed    8  the host cannot be reached
  4  somebody else holds the lease 130  interrupted"""


class Commands(click.Group):
    """Loads a command's module when that command is asked for: what the others stand on is a quarter of the start."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*COMMANDS, *(entry.name for entry in entry_points(group=PLUGINS))])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module:
            found = getattr(import_module(module), cmd_name)
        else:
            found = next((entry.load() for entry in entry_points(group=PLUGINS, name=cmd_name)), None)
        return found if isinstance(found, click.Command) else None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES,
    help="""Turn an SGLang parallelism profile into a proven-live service on a GPU host.

\b
Examples:
  deployer -i inventories/rehearsal.toml profiles      what can be applied
  deployer -i inventories/rehearsal.toml plan tp8      what would change
  deployer -i inventories/rehearsal.toml apply tp8     change it, prove it, make it live
  deployer -i inventories/rehearsal.toml rollback      back to the last proven profile
  deployer -i inventories/rehearsal.toml status        what is live, is it healthy, how fast is it""",
)
@common_options
@click.version_option(__version__, prog_name="deployer")
@click.pass_context
def cli(context: click.Context) -> None:
    context.ensure_object(App)


def run(argv: list[str]) -> int:
    """Run the program and return its exit code. Output that a full disk did not take is an error, too."""
    status = _run(argv)
    if Unbreakable.lost is None:
        return status
    told = UsageError(
        f"the output could not be written: {Unbreakable.lost}",
        remedy="what the command did stands; make room, and ask again with `deployer status` or `deployer history`",
    )
    print_error(App(), told)  # in words, whatever was asked for: a document is what could not be written
    changed = any(name in argv for name in CHANGING)
    return status or (0 if changed else told.exit_code)


def _run(argv: list[str]) -> int:
    """Every error becomes one paragraph and a code."""
    asked = "--json" in argv or os.environ.get("DEPLOYER_JSON", "").lower() in ("1", "true", "yes", "on")
    app = App(flags={"json": True} if asked else {})
    install_signals()
    try:
        result = cli.main(args=argv, prog_name="deployer", standalone_mode=False, obj=app)
        return int(result or 0)
    except click.exceptions.Exit as exit_:
        return int(exit_.exit_code)
    except click.ClickException as error:
        if app.as_json:
            print_error(app, UsageError(error.format_message()))
        else:
            error.show()
        return 2
    except DeployerError as error:
        print_error(app, error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        # click takes any EOFError for a Ctrl-D, but a prompt's own never comes here as the cause.
        if isinstance(error.__cause__, EOFError):
            return _bug(app, error.__cause__)
        print_error(app, interrupted())
        return 130
    except BrokenPipeError:
        Unbreakable(sys.stdout).flush()
        return 0
    except Exception as error:
        return _bug(app, error)


def _bug(app: App, error: Exception) -> int:
    path = write_bug_report(error)
    print_error(
        app,
        DeployerError(
            f"this is a bug in deployer: {type(error).__name__}: {error}",
            remedy=f"please report it with {path}; `deployer status` shows what is serving",
        ),
    )
    return 1
