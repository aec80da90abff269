"""docs/failures.md, made from the data: `python -m tools.reference.failures > docs/failures.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.signatures import Signature, signatures
from tools.reference.markdown import paragraph

_HEAD = """# Known failures of a launch

Generated from `deployer/sglang/data/failures.json` (`python -m tools.reference.failures`); a test
keeps the two equal. [waiting.md](waiting.md#the-cause) explains how a cause is found; `deployer
diagnose` reports it.

The phase is the one in which it usually happens; a diagnosis names the one in which it did happen.
"""
_PARTS = (
    (("line", "exception"), "Causes", "A line that is proof by itself, or what a traceback raised."),
    (("kernel",), "From the kernel and systemd", "Messages of the kernel, and of systemd."),
    (
        ("secondary",),
        "Consequences",
        "Reported only if the log holds no cause: something else happened first and was not logged.",
    ),
    (("stall",), "Silence", "Nothing moves any more; the phase and the log show where it hangs."),
    (
        ("warning",),
        "Warnings",
        "Good launches print these, too. They are never a cause; `diagnose` lists them as notes.",
    ),
    (("quiet",), "Without a trace", "Known, but the log shows nothing of them: only the answers do."),
)


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for where, title, words in _PARTS:
        parts.append(f"\n## {title}\n\n{words}\n")
        parts += _entries([one for one in signatures() if one.where in where])
    return "".join(parts)


def _entries(known: list[Signature]) -> Iterator[str]:
    """Yield a section for each signature, in the order of the phases; several forms of one are one section."""
    order = {name: index for index, name in enumerate(PHASES)}
    first = {one.id: one for one in reversed(known)}
    for one in sorted(first.values(), key=lambda one: (order.get(one.phase or "", len(order)), one.id)):
        paragraphs = [f"Phase: {one.phase or 'any'}. Cause: {one.cause}.", f"Remedy: {one.remedy}."]
        if one.refs:
            paragraphs.append(f"More: {', '.join(_link(ref) for ref in one.refs)}.")
        yield f"\n### `{one.id}`\n\n" + "\n\n".join(map(paragraph, paragraphs)) + "\n"


def _link(ref: str) -> str:
    """Return a reference in short: ``sglang#4205``."""
    if not ref.startswith("https://github.com/"):
        return ref
    _, name, _, number = ref.removeprefix("https://github.com/").split("/", 3)
    return f"[{name}#{number}]({ref})"


if __name__ == "__main__":
    sys.stdout.write(render())
