"""What an engine does: the lines of its launch by rank, and how it ends. For the real SGLang and its stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deployer.sglang.log.batches import parse_batch
from deployer.sglang.log.launch import SHARDS
from deployer.sglang.log.record import records

#: Kinds of lines that deployer reads, in SGLang 0.5.23's words.
KINDS = (
    ("arguments", r"server_args=\{"),
    ("dist begin", r"Init parallel begin\."),
    ("dist end", r"Init parallel ends\. elapsed=[\d.]+ s"),
    ("load begin", r"Load weight begin\. avail mem=[\d.]+ GB"),
    (
        "load end",
        r"Load weight end\. elapsed=[\d.]+ s, type=\w+, .*avail mem=[\d.]+ GB, mem usage=-?[\d.]+ GB",
    ),
    ("kv cache", r"KV Cache is allocated\. .*#tokens: \d+, "),
    ("pool end", r"Memory pool end\. avail mem=[\d.]+ GB"),
    (
        "limits",
        r"max_total_num_tokens=\d+, chunked_prefill_size=-?\d+, .*max_running_requests=\d+, context_len=\d+",
    ),
    ("server process", r"INFO: +Started server process \[\d+\]"),
    ("port open", r"INFO: +Uvicorn running on http://"),
    ("model asked", r'INFO: +[\d.]+:\d+ - "GET /model_info HTTP/1.1" 200 OK'),
    ("warm-up", r'INFO: +[\d.]+:\d+ - "POST /(?:generate|v1/chat/completions) HTTP/1.1" 200 OK'),
    ("ready", r"The server is fired up and ready to roll!"),
)
_KINDS = [(name, re.compile(text)) for name, text in KINDS]


#: Kinds of lines that tell an end, as deployer reads them.
ENDS = (
    ("SIGTERM", r"\] SIGTERM received\. signum=None frame=None\. Draining requests and shutting down\.\.\."),
    (
        "remaining",
        r"\] Gracefully exiting\.\.\. Remaining number of requests \d+\. Remaining requests remaining_rids=",
    ),
    (
        "child crashed",
        r"\] Subprocess \w+ \(pid=\d+\) crashed with exit code -?\d+\. Triggering SIGQUIT for cleanup",
    ),
    ("SIGQUIT", r"\] SIGQUIT received\. signum=None, frame=None\. It usually means one child failed\."),
    ("nobody to dump", r"\] No live scheduler processes found; skipping py-spy and CUDA coredump\."),
    ("waiting for dumps", r"\] Waiting 60\.0 seconds for CUDA coredumps before exiting\."),
    ("exception", r"\] Scheduler hit an exception: Traceback \(most recent call last\):"),
    ("child failed", r"\] Received sigquit from a child process\. It usually means the child failed\."),
    ("kill tree", r"\] kill_process_tree called: parent_pid=\d+, include_parent=False, pid=\d+"),
    ("kill tree and itself", r"\] kill_process_tree called: parent_pid=\d+, include_parent=True, pid=\d+"),
    ("rank died", r"^RuntimeError: Rank \d+ scheduler died during initialization \(exit code: -?\d+\)\."),
    ("not bound", r"\] ERROR: +\[Errno 98\] error while attempting to bind on address \('[\d.]+', \d+\): "),
    ("shutting down", r"\] INFO: +Shutting down"),
    ("application down", r"\] INFO: +Application shutdown complete\."),
    ("finished", r"\] INFO: +Finished server process \[\d+\]"),
    ("usage", r"^[\w. ]+: error: "),
    ("traceback", r"^Traceback \(most recent call last\):"),
)
_ENDS = [(name, re.compile(text)) for name, text in ENDS]


def end_kinds(lines: Iterable[str]) -> list[str]:
    """The kinds of lines that tell an end, in order; equal neighbours count once."""
    said: list[str] = []
    for line in lines:
        for name, regex in _ENDS:
            if regex.search(line) and said[-1:] != [name]:
                said.append(name)
    return said


def same_end(found: Any, kept: Any) -> bool:
    """Whether an end is the one that is kept: what was said in that order or, where it is chance who notices first
    (``or said``), in the other."""
    first = {name: value for name, value in kept.items() if name != "or said"}
    return found in (first, {**first, "said": kept.get("or said", first.get("said"))})


def launch_kinds(lines: Iterable[str]) -> dict[str, list[str]]:
    """The kinds of lines of each rank ("" is the main process), in order, until it is ready. Equal ones count once."""
    found: dict[str, list[str]] = {}

    def add(rank: str, kind: str) -> None:
        said = found.setdefault(rank, [])
        if kind not in said:
            said.append(kind)

    for line in lines:
        for part in re.split(r"[\r\n]", line):
            if SHARDS.search(part) and "server_args=" not in part:
                add("", "shards")
            for head in records(part, len(part) if len(part) < 2000 else 200):
                rank = head.rank
                for name, regex in _KINDS:
                    if regex.match(part, head.end):
                        add(rank, name)
        if "" in found and "ready" in found[""]:
            break
    return found


def batch_fields(lines: Iterable[str]) -> dict[str, list[str]]:
    """Names of the fields of batch lines in their order, by kind of line."""
    found: dict[str, list[str]] = {}
    for line in lines:
        batch = parse_batch(line)
        if batch is not None:
            names = re.findall(r"(?:^|, )(#?[a-z][a-zA-Z _-]*(?: \(token/s\))?): ", line.partition(" batch")[2])
            names = [re.sub(r"^(?:cpu|cuda) graph$", "graph", name) for name in names]
            found["decode" if batch.decode else "prefill"] = names
    return found


def fits(states: Iterable[str], kept: Iterable[str]) -> bool:
    """Whether answers of /health are those that are kept; one that ends in ``?`` may be over between two looks."""
    expression = "".join(f"(?:{state[:-1]} )?" if state.endswith("?") else f"{re.escape(state)} " for state in kept)
    return re.fullmatch(expression, "".join(f"{state} " for state in states)) is not None


def kept(name: str, version: str) -> Any:
    """What the real SGLang did: ``launch`` or ``ends``."""
    return json.loads(place(name, version).read_text(encoding="utf-8"))


def place(name: str, version: str) -> Path:
    """The file that keeps it."""
    return Path(__file__).parents[1] / "data" / "engine" / f"{name}-{version}.json"
