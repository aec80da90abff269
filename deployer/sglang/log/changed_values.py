"""Why SGLang runs with another value than requested: the log line in which it says so. Pure.

SGLang logs most changes of an argument at level warning or info; the texts are those of 0.4.6 to 0.5.23
(``srt/server_args.py``, ``srt/arg_groups/overrides.py``, the scheduler's memory pool).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from deployer.sglang.log.record import message_of

#: Lines that name every argument and explain none.
_LISTS = re.compile(r"server_args=|^usage: |launch_command|max_total_num_tokens=\d")
_CHANGE = re.compile(
    r"(?i)\b(?:adjust\w*|overrid\w*|chang(?:e|ed|ing)|lower\w*|reduc\w*|capped|clamp\w*|set to|setting|sets?|disabl\w*"
    r"|enabl\w*|incompatible|not supported|does not support|only supports?|fall(?:s|ing)? ?back|fallback|forc\w+"
    r"|ignor\w*|automatically|by default|turned (?:on|off)|auto-\w+)\b"
)
#: For arguments that SGLang's sentence does not call by the name of the flag.
_SENTENCES: dict[str, str] = {
    "disable_overlap_schedule": r"(?i)overlap schedul",
    "attention_backend": r"(?i)attention backend|attention_backend",
    "decode_attention_backend": r"(?i)decode attention backend|attention backend",
    "prefill_attention_backend": r"(?i)prefill attention backend|attention backend",
    "ep_size": r"(?i)expert parallel size",
    "dp_size": r"(?i)data parallel size",
    "disable_cuda_graph": r"(?i)cuda graphs? (?:is|are) disabled|disabl\w+ (?:the )?cuda graph",
    "disable_decode_cuda_graph": r"(?i)cuda graphs? (?:is|are) disabled|disabl\w+ (?:decode )?cuda graph",
    "disable_prefill_cuda_graph": r"(?i)disabl\w+ prefill cuda graph",
    "cuda_graph_max_bs": r"(?i)cuda[ _]graph[ _]max[ _]bs|cuda graph (?:batch|bs)",
    "max_running_requests": r"(?i)max[ _]running[ _]requests?|mamba state cache",
    "page_size": r"(?i)page[ _]sizes?\b",
    "kv_cache_dtype": r"(?i)kv[ _]cache[ _](?:dtype|data type)",
    "quantization": r"(?i)quantization",
    "moe_runner_backend": r"(?i)moe[ _]runner[ _]backend|as moe runner",
    "schedule_conservativeness": r"(?i)schedule conservativeness",
    "chunked_prefill_size": r"(?i)chunked[ _]prefill[ _]size|chunked prefill (?:is )?(?:disabled|turned)",
    "disable_radix_cache": r"(?i)radix cache",
    "mem_fraction_static": r"(?i)mem[ _]fraction[ _]static",
    "context_length": r"(?i)context[ _]length",
    "max_total_tokens": r"(?i)max[ _]total(?:[ _]num)?[ _]tokens",
}


@cache
def _pattern(argument: str) -> re.Pattern[str]:
    words = re.escape(argument).replace("_", "[-_ ]")
    named = rf"(?i)(?<![A-Za-z0-9_])(?:--)?{words}(?![A-Za-z0-9_])"
    also = _SENTENCES.get(argument)
    return re.compile(f"{named}|{also.removeprefix('(?i)')}" if also else named)


def reason(argument: str, lines: Iterable[str]) -> str | None:
    """Return the first log line that says why an argument (a name of ``/server_info``) was changed, without its prefix.

    None if there is none. A line counts if it names the argument, or its subject, and speaks of a change.
    """
    pattern = _pattern(argument)
    for line in lines:
        if len(line) < 1000 and pattern.search(line) and _CHANGE.search(line) and not _LISTS.search(line):
            return message_of(line).strip()[:300]
    return None
