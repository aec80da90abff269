"""Pieces of launch logs in SGLang's own form."""

from __future__ import annotations

from deployer.sglang.log.launch import PHASES

AT = "2026-01-01 10:00:"
#: What the log of a launch says until it is in a phase, in the words of 0.5.12.
STEPS = {
    "launch": ["server_args=ServerArgs(model_path='/m', tp_size=2, pp_size=1)"],
    "dist-init": ["Init torch distributed begin.", "sglang is using nccl==2.28.9"],
    "load": [
        "Init torch distributed ends. elapsed=1.00 s, mem usage=0.39 GB",
        "Load weight begin. avail mem=90.00 GB",
    ],
    "kv-pool": [
        "Load weight end. elapsed=9.00 s, type=X, dtype=torch.bfloat16, avail mem=40.00 GB, mem usage=50.00 GB."
    ],
    "capture": [
        "KV Cache is allocated. #tokens: 1000, KV size: 20.00 GB",
        "Memory pool end. avail mem=20.00 GB",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=20.00 GB",
    ],
    "http-up": [
        "Capture cuda graph end. Time elapsed: 9.00 s. mem usage=1.00 GB. avail mem=19.00 GB.",
        "INFO:     Started server process [7]",
    ],
    "warm-up": ["INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)"],
    "ready": ["The server is fired up and ready to roll!"],
}


def until(phase: str, rank: str = "") -> list[str]:
    """The log of a launch that has come to ``phase``; one rank of it, or one that has no name."""
    lines = []
    for number, name in enumerate(PHASES[: PHASES.index(phase) + 1]):
        who = f" {rank}" if rank and name in ("dist-init", "load", "kv-pool", "capture") else ""
        lines += [f"[{AT}{number:02}{who}] {text}" for text in STEPS[name]]
    return lines


def trace(error: str, *frames: str, rank: str = "TP0", second: int = 30) -> list[str]:
    """A scheduler's traceback: ``frames`` are ``file:function:code``."""
    lines = [f"[{AT}{second:02} {rank}] Scheduler hit an exception: Traceback (most recent call last):"]
    for frame in ("managers/scheduler.py:run_scheduler_process:scheduler = Scheduler(", *frames):
        file, function, code = frame.split(":", 2)
        path = file if file.startswith("/") else f"/srv/venv/lib/python3.12/site-packages/sglang/srt/{file}"
        lines += [f'  File "{path}", line 100, in {function}', f"    {code}"]
    return [*lines, *error.split("\n"), ""]


QUIT = [f"[{AT}31] Received sigquit from a child process. It usually means the child failed."]
