# ruff: noqa: E501  lines of logs are as long as they are
"""The same failure in every dress in which logs are handed on: its cause is the same in all of them."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.sglang.log.diagnosis import diagnose
from deployer.sglang.log.encoding import text_of
from deployer.sglang.log.fronts import _OWN
from deployer.sglang.log.text import read
from tests.unit.sglang.log.builders import QUIT, trace, until

DRAFT = "managers/scheduler.py:maybe_init_draft_worker:self.draft_worker = DraftWorkerClass("
LOADER = "models/m.py:load_weights:param = params_dict[name]"
CAPTURE = "model_executor/model_runner.py:init_cuda_graphs:self.graph_runner = CudaGraphRunner(self)"

#: The failures, by signature.
FAILURES: dict[str, list[str]] = {
    "cuda_oom_load": [
        *until("load", "TP1"),
        *trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", LOADER, rank="TP1"),
        *QUIT,
    ],
    "model_path": [
        "Traceback (most recent call last):",
        '  File "/opt/v/lib/python3.12/site-packages/transformers/utils/hub.py", line 479, in cached_files',
        "    hf_hub_download(",
        '  File "/opt/v/lib/python3.12/site-packages/sglang/srt/server_args.py", line 500, in __post_init__',
        "    config = get_config(",
        "OSError: /models/m does not appear to have a file named config.json. Checkout 'https://huggingface.co/x'",
    ],
    "capture_oom": [
        *until("capture", "TP0"),
        *trace("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.00 GiB", CAPTURE),
        *QUIT,
    ],
    "no_kernel_image": [
        *until("capture", "TP0"),
        "CUDA error (/src/build/kernel.h:10): no kernel image is available for execution on the device",
        "[2026-01-01 10:00:40] Rank 0 scheduler is dead. Please check if there are relevant logs.",
    ],
    "argparse": [
        "usage: launch_server.py [-h] --model-path MODEL_PATH [--tp-size TP_SIZE]",
        "launch_server.py: error: unrecognized arguments: --no-such-flag",
    ],
}


def front(text: str, *, keep: bool = True) -> Callable[[list[str]], str]:
    """A text before every line; ``N`` counts. Without ``keep`` the blanks at the end of an empty line are lost."""

    def dressed(lines: list[str]) -> str:
        rows = [f"{text.replace('NN', f'{number % 60:02}')}{line}" for number, line in enumerate(lines, 1)]
        return "\n".join(row if keep else row.rstrip() for row in rows)

    return dressed


def entries(lines: list[str], key: str) -> list[dict[str, object]]:
    return [
        {"insertId": f"a{n}", key: line, "timestamp": f"2026-01-01T10:00:{n % 60:02}.5Z"}
        for n, line in enumerate(lines)
    ]


def table(lines: list[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["timestamp", "resource", "textPayload"])
    writer.writerows([[f"2026-01-01T10:{n // 60:02}:{n % 60:02}Z", "gpu, eu", line] for n, line in enumerate(lines)])
    return out.getvalue()


def export(lines: list[str]) -> str:
    return "\n\n".join(
        f"__CURSOR=s={n}\n__REALTIME_TIMESTAMP=1767261600{n:06}\n_PID=7\nMESSAGE={line}\n_UID=0"
        for n, line in enumerate(lines)
    )


def two_pods(lines: list[str]) -> str:
    other = "Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0, token usage: 0.00, #running-req: 0"
    rows = []
    for number, line in enumerate(lines):
        rows.append(f"lws-0-1: {line}")
        if number % 3 == 1:
            rows.append(f"lws-0-2: [2026-01-01 10:00:{number % 60:02} TP5] {other}")
    return "\n".join(rows)


DRESSES: dict[str, Callable[[list[str]], str | bytes]] = {
    "bare": "\n".join,
    "kubectl --prefix --timestamps": front("[pod/sglang-0/sglang] 2026-01-01T10:00:NN.123456789Z "),
    "kubectl --timestamps": front("2026-01-01T10:00:NN.123456789Z ", keep=False),
    "stern": front("sglang-0 sglang "),
    "stern in colours": front("\x1b[32msglang-0\x1b[0m \x1b[36msglang\x1b[0m "),
    "srun -l": front("3: ", keep=False),
    "LeaderWorkerSet pods": front("deepseek-r1-0-1: ", keep=False),
    "two pods mixed": two_pods,
    "docker compose": front("sglang-1      | "),
    "journalctl short": front("Jan 01 10:00:NN gpu-a python3[4711]: "),
    "journalctl short-iso": front("2026-01-01T10:00:NN+01:00 gpu-a python3[4711]: "),
    "journalctl json": lambda lines: "\n".join(json.dumps({"MESSAGE": line, "_PID": "7"}) for line in lines),
    "journalctl export": export,
    "docker json-file": lambda lines: "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in lines),
    "cloud export, JSON array": lambda lines: json.dumps(entries(lines, "textPayload"), indent=1),
    "cloud export, JSON lines": lambda lines: "\n".join(
        json.dumps({"resource": {"type": "k8s"}, "jsonPayload": {"message": line}}) for line in lines
    ),
    "cloud export, events": lambda lines: json.dumps({"events": entries(lines, "message"), "nextToken": "f/1"}),
    "loki": lambda lines: json.dumps(
        {"data": {"result": [{"stream": {"pod": "a"}, "values": [[f"17672616000{n:05}", line] for n, line in enumerate(lines)]}]}}
    ),
    "cloud export, CSV": table,
    "tabs": front("\t"),
    "columns with tabs": front("2026-01-01T10:00:NNZ\tsglang-0\tstderr\t"),
    "four spaces (Markdown)": front("    ", keep=False),
    "quoted": front("> ", keep=False),
    "quoted twice": front("> > "),
    "literal line ends": lambda lines: json.dumps("\n".join(lines)),
    "ANSI": lambda lines: "\n".join(f"\x1b[33m{line}\x1b[0m" for line in lines),
    "CRLF": "\r\n".join,
    "UTF-16": lambda lines: "\n".join(lines).encode("utf-16"),
    "UTF-16 without a mark": lambda lines: "\n".join(lines).encode("utf-16-le"),
    "UTF-8 with a mark": lambda lines: "\n".join(lines).encode("utf-8-sig"),
    "newest first": lambda lines: "\n".join(reversed(lines)),
    "newest first, with times": lambda lines: "\n".join(reversed(front("2026-01-01T10:00:NN.5Z ")(lines).split("\n"))),
    "double prefix": front("job-7 >> sglang-0 2026-01-01T10:00:NN.1Z stderr F "),
    "HTML": lambda lines: html.escape("\n".join(lines)),
    "line numbers": lambda lines: "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines, 1)),
    "line numbers of grep": lambda lines: "\n".join(f"{n}:{line}" for n, line in enumerate(lines, 1)),
    "a logger of another program": front("2026-01-01 10:00:NN,123 - __main__ - INFO - "),
}  # fmt: skip


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("signature", FAILURES)
def test_the_cause_is_the_same_in_every_dress(dress: str, signature: str) -> None:
    bare = diagnose(read("\n".join(FAILURES[signature])))
    dressed = DRESSES[dress](FAILURES[signature])
    seen = diagnose(read(text_of(dressed) if isinstance(dressed, bytes) else dressed))
    assert bare.cause is not None
    assert seen.cause is not None
    assert (seen.cause.signature, seen.phase) == (signature, bare.phase)
    assert seen.cause.rank == bare.cause.rank


#: Any text that does not look like a part of a log itself.
PREFIXES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=30)
PREFIXES = PREFIXES.filter(lambda text: not _OWN.search(text) and not text.startswith('{"'))


@settings(deadline=None, max_examples=60)
@given(PREFIXES, st.sampled_from([name for name in FAILURES if name not in ("argparse",)]))
def test_any_text_before_every_line_changes_nothing(prefix: str, signature: str) -> None:
    seen = diagnose(read("\n".join(prefix + line for line in FAILURES[signature])))
    assert seen.cause is not None
    assert seen.cause.signature == signature
