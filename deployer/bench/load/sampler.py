"""Look at the server and its GPUs once a second while the load runs, in a process of its own (``--sampler``).

Beside the client's event loop it would be a latency of every stream. First line of stdin: ``{"base_url",
"interval", "nvidia_smi", "gpus"}``; the API key from ``DEPLOYER_BENCH_API_KEY``. Lines to stdout: ``{"t", "running",
"queued", "kv_use"}`` and ``{"t", "gpus": [...]}``, where ``t`` is on the monotonic clock. It ends with its stdin.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from deployer.bench.load.spec import Json
from deployer.metrics import by_rank, combined_loads

#: nvidia-smi may be slow (a second with eight GPUs and a busy driver) and holds locks: at most this share of the time.
SMI_SHARE = 0.1
#: Seconds that the server, and nvidia-smi, have for an answer.
PATIENCE = 3.0

_FIELDS = ("index", "utilization.gpu", "power.draw", "power.limit", "memory.used", "memory.total")
_NAMES = ("index", "utilization", "power_w", "power_limit_w", "memory_used", "memory_total", "sm_clock_mhz")
_MIB = 1024 * 1024
_ABSURD = 1e18
#: A pool may be a little more than full by what is being freed; more than this is not a share.
_MOST_SHARE = 1.5
#: Looks without an answer in time, after which a source is given up.
_PATIENT_LOOKS = 3


def read_loads(document: Any) -> Json | None:
    """Return ``{running, queued, kv_use}`` out of ``/v1/loads``: requests of all ranks, the fullest pool."""
    numbers = combined_loads(document)
    if numbers is None or "num_running_reqs" not in numbers:
        return None
    return {
        "running": int(numbers["num_running_reqs"]),
        "queued": int(numbers.get("num_waiting_reqs", 0)),
        "kv_use": _share(numbers.get("token_usage")),
    }


def read_metrics(text: str) -> Json | None:
    """Return the same out of ``/metrics``. Ranks of one data-parallel group repeat one another: the highest counts."""
    gauges = by_rank(text)
    if "num_running_reqs" not in gauges:
        return None
    return {
        "running": int(sum(gauges["num_running_reqs"].values())),
        "queued": int(sum(gauges.get("num_queue_reqs", {}).values())),
        "kv_use": _share(max(gauges.get("token_usage", {}).values(), default=None)),
    }


def _share(value: Any) -> Any:
    """Return a share of a whole; None if it cannot be one."""
    return value if value is not None and value <= _MOST_SHARE else None


def read_smi(text: str, gpus: Sequence[int] | None) -> list[Json]:
    """Return the GPUs in ``nvidia-smi``'s CSV: those named, or all. What it does not know (``[N/A]``) is None."""
    rows = []
    for line in text.splitlines():
        values = [_number(part) for part in line.split(",")]
        row = dict(zip(_NAMES, values))  # noqa: B905 (Python 3.9 has no strict)
        if row.get("index") is None or (gpus is not None and row["index"] not in gpus):
            continue
        for name in ("memory_used", "memory_total"):
            if row.get(name) is not None:
                row[name] = int(row[name] * _MIB)
        rows.append({**row, "index": int(row["index"])})
    return rows


def _number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < _ABSURD else None


class Looker:
    """The sources of figures. One that cannot answer is given up at once, one that may be slow after some looks."""

    def __init__(self, base_url: str, api_key: str | None, *, nvidia_smi: bool, gpus: Sequence[int] | None) -> None:
        self._base = base_url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._sources = ["/v1/loads", "/metrics"]
        self._silent = dict.fromkeys(self._sources, 0)
        self._gpus = gpus
        self._smi = shutil.which("nvidia-smi") if nvidia_smi else None
        self._smi_fields = [(*_FIELDS, "clocks.sm"), _FIELDS]
        self._smi_next = 0.0

    def server(self) -> Json | None:
        """Return the server's own figures; None if it has none."""
        for source in list(self._sources):
            request = urllib.request.Request(self._base + source, headers=self._headers)
            try:
                with self._open(request, timeout=PATIENCE) as answer:
                    text = answer.read(4 * _MIB).decode("utf-8", "replace")
                figures = read_loads(json.loads(text)) if source == "/v1/loads" else read_metrics(text)
            except urllib.request.HTTPError:
                self._sources.remove(source)  # it will not have it in a second either
                continue
            except OSError:
                self._silent[source] += 1
                if self._silent[source] >= _PATIENT_LOOKS:  # each costs the time of looks at the GPUs
                    self._sources.remove(source)
                continue
            except Exception:  # whatever a server may send that is not about its load
                continue
            self._silent[source] = 0
            if figures:
                self._sources = [source]
                return figures
        return None

    def gpus(self) -> list[Json] | None:
        """Return what nvidia-smi reports; None if there is none or it is not its turn."""
        began = time.perf_counter()
        if self._smi is None or began < self._smi_next:
            return None
        command = [self._smi, f"--query-gpu={','.join(self._smi_fields[0])}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired):
            self._smi = None
            return None
        self._smi_next = began + (time.perf_counter() - began) / SMI_SHARE
        if done.returncode != 0:
            self._smi_fields = self._smi_fields[1:]
            self._smi = self._smi if self._smi_fields else None
            return self.gpus() if self._smi_next <= time.perf_counter() else None
        return read_smi(done.stdout, self._gpus)


def main() -> int:
    """Run until stdin ends."""
    settings = json.loads(sys.stdin.buffer.readline() or b"null")
    if not settings:
        return 0
    key = os.environ.get("DEPLOYER_BENCH_API_KEY")
    looker = Looker(settings["base_url"], key, nvidia_smi=settings["nvidia_smi"], gpus=settings["gpus"])
    while True:
        for figures in (looker.server(), looker.gpus()):
            if figures:
                seen = {"gpus": figures} if isinstance(figures, list) else figures
                sys.stdout.write(json.dumps({"t": time.perf_counter(), **seen}) + "\n")
        try:
            sys.stdout.flush()
        except OSError:
            return 0
        if select.select([sys.stdin], [], [], settings["interval"])[0]:
            return 0
