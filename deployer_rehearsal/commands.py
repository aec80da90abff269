"""`deployer rehearse`: practice hosts on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from deployer.errors import Interrupted, UsageError
from deployer.resources import shipped
from deployer_rehearsal import hosts, machine, sglang_env
from deployer_rehearsal.checks import SETTINGS
from deployer_rehearsal.engine_venv import DEFAULT_VERSION, VERSIONS
from deployer_rehearsal.inventory import TEMPLATES
from deployer_rehearsal.preparation import size_text
from deployer_rehearsal.sets import DEFAULT_FOLDER, DEFAULT_SET, SGLANG_SET, STORY_SET


def shipped_inventory(engine: str = "standin") -> str:
    """Return the path of the inventory of an engine's usual set, relative to here if possible."""
    path = shipped("inventories") / TEMPLATES[engine][0]
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory has been removed
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def rerun_hint(engine: str = "standin") -> str:
    """Return what to do with the host that a demo leaves."""
    if engine == "sglang":
        inventory = shipped_inventory(engine)
        return (
            f"The practice host is still up: `.venv/bin/deployer -i {inventory} status` looks at it, "
            f"`.venv/bin/deployer -i {inventory} apply tp2` goes on, `.venv/bin/deployer rehearse down --name "
            f"{SGLANG_SET}` removes it.\n(The prepared SGLang stays for the next time; `.venv/bin/deployer rehearse "
            "clean` removes that too.)"
        )
    if engine == "story":
        return (
            "The comparison is in story.html (the speeds are the story's, replayed by the stand-in). "
            "The practice host is still up: "
            f"`.venv/bin/deployer rehearse down --name {STORY_SET}` or `make down` removes it."
        )
    return (
        "The practice host is still up: `make status` looks at it, `make apply PROFILE=ep8 ARGS=--yes` goes on, "
        "`make down` removes it.\n"
        f"(Or `.venv/bin/deployer -i {shipped_inventory()} status`; `.venv/bin/deployer rehearse down`.)"
    )


def _asked_for_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """--json may stand before the command's name too; the root command keeps it in its flags."""
    return value or bool(getattr(context.find_root().obj, "flags", {}).get("json"))


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="DEPLOYER_JSON",
    callback=_asked_for_json,
    help="One JSON document on stdout, nothing else.",
)
set_option = click.option(
    "--name", "set_name", default=DEFAULT_SET, show_default=True, help="Which set of practice hosts."
)


#: Variables that are passed on to root; so are pip's settings, for the packages of the real engine.
_KEPT = ["DEPLOYER_REHEARSAL_DIR", "DEPLOYER_JSON"]


def as_root() -> None:
    """Run the same command line again as root, through `sudo -n`, if that is needed and allowed."""
    sudo = machine.program("sudo")
    if os.geteuid() == 0 or sudo is None:
        return
    if subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        kept = ",".join(_KEPT + [name for name in os.environ if name.startswith("PIP_")])
        sys.stdout.flush()
        command = [sudo, "-n", f"--preserve-env={kept}", sys.executable, "-m", "deployer", *sys.argv[1:]]
        os.execv(sudo, command)


def say_to(as_json: bool) -> Callable[[str], None]:
    """Return where progress goes: to stderr if stdout belongs to a JSON document."""
    return lambda line: click.echo(line, err=as_json)


def print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


class OnThisMachine(click.Group):
    """Commands that keep files on the operator's machine, whose disk may be full or not writable.

    They work step by step, and each continues where an interrupted one left off.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            trouble = machine.trouble_with_files(error)
            if trouble is None:
                raise
            raise trouble from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted", remedy="run the same command again to continue from here") from error


@click.group(
    cls=OnThisMachine,
    epilog="""\b
Examples:
  deployer rehearse up                               one host, SGLang 0.5.12.post1
  deployer -i inventories/rehearsal.toml apply tp8   deploy on it
  deployer rehearse fault oom-in-capture             make every start fail, until `fault clear`
  deployer rehearse fault clear
  deployer rehearse down                             nothing is left""",
)
def rehearse() -> None:
    """Run practice hosts on this machine; no GPU is needed.

    They have a real sshd and systemd, and a stand-in engine or the real SGLang on the CPU. Needs Linux and root (or
    sudo). Everything they write stays in /var/lib/deployer-rehearsal (DEPLOYER_REHEARSAL_DIR).
    """


@rehearse.command(
    epilog="""\b
Examples:
  deployer rehearse up
  deployer rehearse up --hosts 2 --sglang 0.5.23
  deployer rehearse up --name mine --set scale=0.25     quick starts, in a set of its own
  deployer rehearse up --engine sglang                  the real SGLang, on the CPU (3 GB once, some minutes)"""
)
@click.option("--hosts", "count", type=click.IntRange(1), default=1, show_default=True, help="How many hosts.")
@click.option(
    "--engine",
    type=click.Choice(tuple(TEMPLATES)),
    default="standin",
    show_default=True,
    help=f"The stand-in for eight GPUs, or the real SGLang {sglang_env.VERSION} on the CPU.",
)
@click.option(
    "--sglang",
    "version",
    type=click.Choice(VERSIONS),
    help=f"The SGLang version that the stand-in engine speaks like.  [default: {DEFAULT_VERSION}]",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"A setting of the stand-in engine: {', '.join(SETTINGS)}.",
)
@click.option(
    "--name",
    "set_name",
    help=f"Which set of practice hosts.  [default: {DEFAULT_SET}; with the real engine {SGLANG_SET}]",
)
@json_option
def up(
    count: int,
    engine: str,
    version: str | None,
    pairs: tuple[str, ...],
    set_name: str | None,
    as_json: bool,
) -> None:
    """Boot practice hosts, or find them booted.

    The real engine is prepared once, for all sets: a Python environment with SGLang, and a tiny model. An interrupted
    preparation continues where it stopped.
    """
    as_root()
    usual_set = TEMPLATES[engine][1]
    set_name = set_name or usual_set
    booted = hosts.up(
        set_name,
        count,
        engine=engine,
        engine_version=version,
        settings=options(pairs),
        say=say_to(as_json),
    )
    if as_json:
        print_json(hosts.status(set_name))
        return
    usual = len(booted) == 1 and booted[0].folder.parent == DEFAULT_FOLDER / usual_set
    click.echo(f"inventory  {shipped_inventory(engine) if usual else booted[0].inventory}")
    click.echo(f"ssh        ssh -F {booted[0].ssh_config} {booted[0].name}")


@rehearse.command(epilog="\b\nExample:\n  deployer rehearse down")
@set_option
@json_option
def down(set_name: str, as_json: bool) -> None:
    """Stop practice hosts and remove everything they wrote."""
    as_root()
    removed = hosts.down(set_name, say=say_to(as_json))
    if as_json:
        print_json({"set": set_name, "removed": removed})
    elif not removed:
        click.echo(f"there are no practice hosts in set {set_name}")


@rehearse.command(epilog="\b\nExample:\n  deployer rehearse clean")
@json_option
def clean(as_json: bool) -> None:
    """Remove the prepared real engine (SGLang and its model). No practice host may be using it."""
    as_root()
    machine.require_root()
    freed = sglang_env.clean(lambda: hosts.sets_with("sglang"))
    if as_json:
        print_json({"removed": freed is not None, "bytes": freed or 0})
    elif freed is None:
        click.echo("no engine is prepared")
    else:
        click.echo(f"removed sglang-{sglang_env.VERSION}: {size_text(freed)}")


@rehearse.command(epilog="\b\nExamples:\n  deployer rehearse status\n  deployer rehearse status --json")
@set_option
@json_option
def status(set_name: str, as_json: bool) -> None:
    """Show the practice hosts and their faults."""
    as_root()
    document = hosts.status(set_name)
    if as_json:
        print_json(document)
        return
    if not document["hosts"]:
        click.echo(f"there are no practice hosts in set {set_name}; `deployer rehearse up` creates one")
    for host in document["hosts"]:
        state = "up" if host["ssh"] else "running, SSH does not answer" if host["running"] else "down"
        faults = ", ".join(entry["name"] for entry in host["faults"])
        click.echo(
            f"{host['host']}  {host['address']}:{host['port']}  {state}{f'  faults: {faults}' if faults else ''}"
        )
    others = [name for name in document["sets"] if name != set_name]
    if others:
        click.echo(f"other sets: {', '.join(others)} (choose one with --name)")
    prepared = document["prepared"]
    if prepared["there"]:
        how = "" if prepared["ready"] else ", not finished"
        click.echo(
            f"prepared   {prepared['engine']}: {size_text(prepared['bytes'])} in {prepared['folder']}{how}; "
            "`deployer rehearse clean` removes it"
        )


@rehearse.command(
    epilog="""\b
Examples:
  deployer rehearse fault crash-in-load --set rank=3
  deployer rehearse fault slow --set percent=40 --set once=true
  deployer rehearse fault never-ready --set when_argv_contains=--pp-size
  deployer rehearse fault clear"""
)
@click.argument("name", type=click.Choice([*hosts.FAULTS, "clear"]), metavar="NAME")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="An option of the fault.")
@click.option("--host", "host_name", help="Which host; the first one otherwise.")
@set_option
@json_option
def fault(name: str, pairs: tuple[str, ...], host_name: str | None, set_name: str, as_json: bool) -> None:
    """Make the stand-in engine fail as real ones do, until `fault clear`.

    NAME is one of: {names}. Their options: docs/rehearsal.md; every one takes once=true, when_argv_contains=TEXT
    and unless_argv_contains=TEXT.
    """
    as_root()
    faults = hosts.fault(set_name, host_name, name, options(pairs))
    if as_json:
        print_json({"set": set_name, "faults": faults})
        return
    click.echo("no faults" if not faults else "faults: " + ", ".join(entry["name"] for entry in faults))


fault.help = (fault.help or "").replace("{names}", ", ".join((*hosts.FAULTS, "clear")))


def options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return KEY=VALUE words as data: values that are JSON (a number, true, a list) as such, others as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise UsageError(f"--set expects KEY=VALUE, not `{pair}`")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    return values
