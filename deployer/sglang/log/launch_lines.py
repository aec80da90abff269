"""What the lines of a launch look like, in the dialects from SGLang 0.4 to 0.5.23. Pure.

Every expression is bounded: a line of a megabyte is read in linear time.
"""

from __future__ import annotations

import re

from deployer.sglang.log.text import BARE_RANKS, LEVEL, RANKS

#: A record of SGLang's own: its time, its rank (`[gpu_id=0]` in the oldest), and at times a level and a place.
RECORD = re.compile(
    rf"\[(?:(?:(?:\d{{4}}-)?\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?(?P<rank>{RANKS})"
    rf"|(?P<old>gpu_id=\d{{1,3}})|(?P<bare>{BARE_RANKS}))\] ?{LEVEL}",
    re.ASCII,
)
UVICORN = re.compile(r"INFO: {1,8}(Started server process|Uvicorn running on)", re.ASCII)
SHARDS = re.compile(
    r"[Ll]oading [\w .-]{0,60}?(?:shards|files|[Ll]oader|[Ss]treamer):\s{1,8}\d{1,3}% (?:Completed )?(?:\| ?)?"
    r"(\d{1,6})/(\d{1,6}) \[",
    re.ASCII,
)
CAPTURE = re.compile(
    r"(?:Capturing|Compiling) [\w ]{1,24}? \((?:(?:bs|num_tokens)=(\d{1,9}))?"
    r" ?(?:avail_mem=([\d.]{1,12}) GB)?[^)\r\n]{0,40}\):"
    r"\s{1,8}\d{1,3}%\|[^|\r\n]{0,200}\| (\d{1,6})/(\d{1,6}) \[",
    re.ASCII,
)
#: A bar without a name, as old versions draw while they capture.
PLAIN_BAR = re.compile(r"\s{0,4}\d{1,3}%\|[^|\r\n]{0,200}\| (\d{1,6})/(\d{1,6}) \[", re.ASCII)
BEGIN_CAPTURE = re.compile(
    r"Capture [\w ()-]{0,60}?graphs? begin\b(?:.{0,400}?avail mem=([\d.]{1,12}) GB)?",
    re.ASCII | re.IGNORECASE,
)
END_CAPTURE = re.compile(r"Capture [\w ()-]{0,60}?graphs? end\b", re.ASCII | re.IGNORECASE)
CAPTURE_SIZES = re.compile(r"Capture cuda graph (?:bs|num tokens) \[([\d, ]{1,20000})\]", re.ASCII)
#: What a scheduler says of its work; the second group is there where other requests run at the same time.
BATCH = re.compile(r"(Decode|Prefill) batch\b(?:.{0,400}?#running-req: ([1-9]))?", re.ASCII)
LIMITS = re.compile(r"\b(\w{1,40})=(-?\d{1,15}(?:\.\d{1,6})?)", re.ASCII)
NUMBER = re.compile(r"(-?\d{1,12}(?:\.\d{1,6})?)", re.ASCII)
SIZES = re.compile(r"['\"]?\b(tp_size|pp_size|dp_size|ep_size)['\"]?\s?[=:]\s?(\d{1,5})\b", re.ASCII)
PROBE = re.compile(r'"GET /(?:health|health_generate|ready|ping)\b[^"]{0,200}" \d{3}')
COLOUR = re.compile(r"\x1b\[[0-9;:?]{0,24}[ -/]{0,4}[@-~]")
