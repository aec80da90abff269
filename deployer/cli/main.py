"""The `deployer` command: parse, call, show. Decisions are made elsewhere.

Modules of this package import only click at their top; the rest they import when a command runs. So help, completion
and a mistyped command answer at once.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

import click

from deployer import __version__
from deployer.cli.app import App
from deployer.cli.failing import interrupted, print_bug, print_error
from deployer.cli.options import common_options
from deployer.cli.output import OUTPUT_LOST, Unbreakable
from deployer.errors import DeployerError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Entry points of packages that bring a command of their own.
PLUGINS = "deployer.commands"
#: The commands: where each is defined (None: in a package of its own), and its short help (its first sentence).
COMMANDS: dict[str, tuple[str | None, str]] = {
    "apply": ("deployer.cli.change", "Make PROFILE live; promote it only once it is proven."),
    "bench": ("deployer.cli.bench", "Benchmark what runs now; keep the figures beside its release."),
    "check": ("deployer.cli.check", "Check inventory, profiles, flags, templates and known problems."),
    "compare": ("deployer.cli.compare", "Compare benchmarks, with a verdict on every difference."),
    "converge": ("deployer.cli.change", "Make the host equal to its live release; prove that it serves."),
    "diagnose": ("deployer.cli.diagnose", "Say why a launch failed: phase, first cause, remedy, evidence."),
    "doctor": ("deployer.cli.doctor", "Find what may slow down a running service, and what to try."),
    "hold": ("deployer.cli.hold", "Put the host on hold: nobody changes it until the hold ends."),
    "history": ("deployer.cli.look", "List the releases of a service, the newest first."),
    "logs": ("deployer.cli.look", "Print the service's log from the host, without secrets."),
    "metrics": ("deployer.cli.metrics", "Print live releases, changes and guard actions as metrics."),
    "plan": ("deployer.cli.change", "Show what `apply PROFILE` would change, and its cost."),
    "profiles": ("deployer.cli.look", "List the profiles with the SGLang arguments of each."),
    "rehearse": (None, "Run practice hosts on this machine; no GPU is needed."),
    "resume": ("deployer.cli.change", "Resume an interrupted change in the step it is in."),
    "rollback": ("deployer.cli.change", "Go back to the release that was live before, or to release N."),
    "sglang": ("deployer.cli.sglang", "Show or learn the flags of SGLang versions."),
    "status": ("deployer.cli.look", "Show what is live, whether it is healthy, and how fast it is."),
}
#: Commands that may change a host.
CHANGING = ("apply", "rollback", "resume", "converge")
EXIT_CODES = """\b
Exit codes:
  0  done, or nothing to do          5  the candidate failed, the live profile serves again
  1  a bug in deployer               6  nothing healthy is serving
  2  usage, configuration, consent   7  the benchmark is inconclusive; not promoted
  3  refused, nothing was changed    8  the host cannot be reached
  4  in use, or on hold             130  interrupted"""


class Commands(click.Group):
    """Loads the module of a command when that command is needed; lists and completes names without it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = _plugin(cmd_name) if module is None else getattr(import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from deployer.config.wording import nearest

            near = nearest(name, COMMANDS)
            ctx.fail(f"No such command {name!r}.{f' Did you mean {near!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def _plugin(name: str) -> object:
    from importlib.metadata import entry_points

    for entry in entry_points(group=PLUGINS, name=name):
        with suppress(ModuleNotFoundError):  # its package was removed by hand
            return entry.load()
    raise UsageError(
        f"`deployer {name}` is not installed",
        remedy="install deployer again: its own package has the command",
    )


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
    """Run the program and return its exit code. Output lost to a full disk is an error, too."""
    status = _run(argv)
    if Unbreakable.lost is None:
        return status
    error = UsageError(
        f"the output could not be written: {Unbreakable.lost}",
        remedy="the command itself is done; make room, then see `deployer status` or `deployer history`",
    )
    print_error(App(), error)  # in words, even with --json: the document is what could not be written
    changed = any(name in argv for name in CHANGING) and not {"-h", "--help"} & set(argv)
    return status or (0 if changed else error.exit_code)


def _run(argv: list[str]) -> int:
    """Run the command; every error becomes one paragraph and an exit code."""
    as_json = "--json" in argv or os.environ.get("DEPLOYER_JSON", "").lower() in ("1", "true", "yes", "on")
    app = App(flags={"json": True} if as_json else {})
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
        # click turns any EOFError into an Abort, but not the one of its own prompt.
        if isinstance(error.__cause__, EOFError):
            return print_bug(app, error.__cause__)
        print_error(app, interrupted())
        return 130
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_LOST:
            return print_bug(app, error)
        Unbreakable(sys.stdout).give_up(error)  # help or the version, which click itself prints
        return 0
    except Exception as error:
        return print_bug(app, error)


def install_signals() -> None:
    """Treat SIGTERM and a closed terminal like Ctrl-C: leave a known state behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
