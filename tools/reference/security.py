"""docs/security.md, made from ``deployer/config/hardening.py``: ``python -m tools.reference.security`` writes it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from deployer.config.hardening import HARDENING, LEFT_OUT
from tools.reference.markdown import WIDTH

_HEAD = """\
# Security

## Secrets

Where they come from is in the configuration ([secrets](configuration.md#secrets)); their values are
never kept on the operator's machine. On the host they are in files of mode 0600, the API key in a
release's `config.yaml`, secret variables in its `env`: in no unit, manifest, audit line or command
line. deployer takes the values of both, and whatever has a secret's name, out of all that it shows
or keeps of a server: `logs`, `doctor`, `diagnose`, the log of a failed launch, what is in effect.

**SGLang itself prints the API key into the host's journal**, in its line `server_args=`, each time
it starts. No known version has a way around that: none reads the key from the environment, and the
line is written whichever way the key is given, on the command line or (from 0.5.5) in the file that
deployer passes with `--config`.

| SGLang | the line `server_args=` | given by deployer |
|---|---|---|
| 0.4.6.post5, 0.5.2 | has the key | not at all: refused, only the command line would do |
| 0.5.5 to 0.5.16 | has the key | in a file of mode 0600 |
| 0.5.23 | has the key; only watermark keys are `<redacted>` | in a file of mode 0600 |

Who can read it there: root, the groups `systemd-journal` and `adm` (on some systems `wheel`), and
every place to which the journal is forwarded. `check` and `plan` say so
([api-key-shown](rules.md#api-key-shown)). What to do: keep those groups as small as the circle that
may have the key; keep the line from being forwarded; or leave `api_key` out, bind to 127.0.0.1, and
have a proxy in front ask for keys. After a key has been in a journal that others could read, change
it and `journalctl --rotate --vacuum-time=1s`, which removes the old journal of the whole host.
Flags that carry other secrets (`--admin-api-key`, `--ssl-keyfile-password`) are refused
([secret-argument](rules.md#secret-argument)): they would be in that line and on the command line.

## Links

The agent writes as root below `/var/lib/deployer`, `/run/deployer`, the folders of units, and in
temporary folders of its own (mode 0700, unpredictable names). In none of them does it follow a link
that somebody has put where it writes: the link is replaced, or the operation is refused.

## The unit

What `systemd-analyze security sglang-NAME.service` finds is either prevented by the unit or listed
here with the reason; a test on a practice host compares the two. Its figure for a server that runs
as root is 7.3 (before: 8.8; an ordinary service has 9.6). To leave a directive out, name it
in the inventory or in a profile: `relax = ["ProtectSystem"]`. A drop-in that sets one of these
is reported as drift.
"""

_TAKEN = """
### What the unit takes away
"""

_LEFT = """
### What it leaves, and why
"""


def reference() -> str:
    """Return the text of docs/security.md."""
    taken = [_item(f"`{name}={item.value}`", item.why) for name, item in HARDENING.items()]
    left = [_item(f"`{name}`", why) for name, why in LEFT_OUT.items()]
    return "\n".join([_HEAD + _TAKEN, *taken, _LEFT, *left]) + "\n"


def _item(name: str, why: str) -> str:
    """Return an item of a list, wrapped; the name stays whole."""
    text = f"* {name.replace(' ', chr(1))}: {why}"
    wrapped = textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return wrapped.replace(chr(1), " ")


def main() -> None:
    """Write the page into a checkout."""
    Path("docs/security.md").write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
