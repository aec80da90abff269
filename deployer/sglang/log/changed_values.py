"""Why SGLang runs with another value than requested: the log line in which it says so. Pure.

SGLang logs most changes of an argument at level warning or info; the texts are those of 0.4.6 to 0.5.23
(``srt/server_args.py``, ``srt/arg_groups/overrides.py``, the scheduler's memory pool).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from deployer.sglang.log.record import message_of
from deployer.sglang.log.signatures import expressions

#: Lines that name every argument and explain none.
_LISTS = re.compile(r"server_args=|^usage: |launch_command|max_total_num_tokens=\d")
_CHANGE = re.compile(
    r"(?i)\b(?:adjust\w*|overrid\w*|chang(?:e|ed|ing)|lower\w*|reduc\w*|capped|clamp\w*|set to|setting|sets?|disabl\w*"
    r"|enabl\w*|incompatible|not supported|does not support|only supports?|fall(?:s|ing)? ?back|fallback|forc\w+"
    r"|ignor\w*|automatically|by default|turned (?:on|off)|auto-\w+)\b"
)


@cache
def _pattern(argument: str) -> re.Pattern[str]:
    words = re.escape(argument).replace("_", "[-_ ]")
    named = rf"(?i)(?<![A-Za-z0-9_])(?:--)?{words}(?![A-Za-z0-9_])"
    also = expressions("subjects").get(argument)
    return re.compile(f"{named}|{also}" if also else named)


def reason(argument: str, lines: Iterable[str]) -> str | None:
    """Return the first log line that says why an argument (a name of ``/server_info``) was changed, without its prefix.

    None if there is none. A line counts if it names the argument, or its subject, and speaks of a change.
    """
    pattern = _pattern(argument)
    for line in lines:
        if len(line) < 1000 and pattern.search(line) and _CHANGE.search(line) and not _LISTS.search(line):
            return message_of(line).strip()[:300]
    return None
