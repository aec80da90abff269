"""docs/failures.md, made from the data: `python -m tools.reference.failures > docs/failures.md`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deployer.sglang.log.launch import PHASES
from deployer.sglang.log.signatures import Signature, signatures

_HEAD = """# Known failures of a launch

Made from `deployer/sglang/data/failures.json` (`python -m tools.reference.failures`); a test keeps the two equal.
How one is found is said in [waiting.md](waiting.md#the-cause); `deployer diagnose` says which it is.

The phase is the one in which it usually happens; what a diagnosis names is where it did happen.
"""
_PARTS = (
    (("line", "exception"), "Causes", "A line that is proof by itself, or what a traceback raised."),
    (("kernel",), "From the kernel and systemd", "The kernel's messages, and systemd's."),
    (
        ("secondary",),
        "Consequences",
        "Named only where no cause is in the log: something else came first and did not say so.",
    ),
    (("stall",), "Silence", "Nothing moves any more; the phase and the log tell where it hangs."),
    (
        ("warning",),
        "Warnings",
        "Good launches print these too. They are never a cause; `diagnose` lists them as notes.",
    ),
    (("quiet",), "Without a trace", "Known, and nothing in the log shows it: only the answers do."),
)


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    for where, title, words in _PARTS:
        known = [one for one in signatures() if one.where in where]
        parts.append(f"\n## {title}\n\n{words}\n\n{_table(known)}")
    return "".join(parts)


def _table(known: Sequence[Signature]) -> str:
    """One row a signature, in the order of the phases; several forms of one are one row."""
    order = {name: index for index, name in enumerate(PHASES)}
    first = {one.id: one for one in reversed(known)}
    rows = sorted(first.values(), key=lambda one: (order.get(one.phase or "", len(order)), one.id))
    lines = ["| signature | phase | cause | remedy | more |", "|---|---|---|---|---|"]
    for one in rows:
        more = ", ".join(_link(ref) for ref in one.refs)
        cells = [f"`{one.id}`", one.phase or "any", one.cause, one.remedy, more]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _link(ref: str) -> str:
    """A reference, short: ``sglang#4205``."""
    if not ref.startswith("https://github.com/"):
        return ref
    _, name, _, number = ref.removeprefix("https://github.com/").split("/", 3)
    return f"[{name}#{number}]({ref})"


if __name__ == "__main__":
    sys.stdout.write(render())
