"""A notice: the facts of one moment of a change, as programs, webhooks and people get them.

The operator's side and the host tell them in the same way. The module travels to the host with the agent, so it imports
nothing of deployer and keeps to Python 3.8 and its standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = 300  # characters of a program's output that a message repeats


def environment(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts as variables, ``DEPLOYER_HOOK_EVENT`` and so on; unknown ones are empty."""
    return {"DEPLOYER_HOOK_" + name.upper(): _text(value) for name, value in facts.items()}


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value).replace("\0", "")


def sentence(facts: Mapping[str, Any]) -> str:
    """Return the moment in one line, for people."""
    words = f"{facts['service']} on {facts['host']}: {facts['event'].replace('_', ' ')}"
    words += f" of {facts['release']}" if facts["release"] else ""
    words += f" (before: {facts['previous']})" if facts["previous"] else ""
    words += "" if facts["serving"] is None else "; serving" if facts["serving"] else "; NOT serving"
    return words + (f": {facts['reason']}" if facts["reason"] else "")


def body(facts: Mapping[str, Any], form: str) -> Mapping[str, Any]:
    """Return what a webhook gets: all facts, or in the form ``slack`` one sentence, in which nothing is markup."""
    if form != "slack":
        return facts
    return {"text": sentence(facts).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def try_again(status: int) -> bool:
    """Return whether a receiver that answers this status may take the notice at another attempt."""
    return status >= 500 or status == 429


def run_program(command: Sequence[str], facts: Mapping[str, Any], timeout: float) -> str | None:
    """Run a program with the facts in its environment and on its input; return why it failed, None if it did not.

    After ``timeout`` seconds it is killed, with what it has started.
    """
    what = f"the hook {facts['event']} ({command[0]})"
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **environment(facts)),
            start_new_session=True,
        )
    except OSError as error:
        return f"{what} cannot be run: {error.strerror}"
    with child:
        try:
            output, _ = child.communicate(json.dumps(facts).encode("utf-8"), timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"{what} did not end within {timeout:g} s"
            raise
    if child.returncode == 0:
        return None
    words = " ".join(output.decode("utf-8", "replace").split())[-SHOWN:]
    return f"{what} ended with status {child.returncode}" + (f": {words}" if words else "")
