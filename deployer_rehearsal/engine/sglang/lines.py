"""How SGLang writes: record prefixes, progress bars, tracebacks. Pure text."""

from __future__ import annotations

import dataclasses
import time


@dataclasses.dataclass(frozen=True)
class Rank:
    """A scheduler process. A kind of parallelism appears in its lines only if its size is above one."""

    index: int
    pp: int
    tp: int
    ep: int
    label: str

    @property
    def leads_stage(self) -> bool:
        return self.tp == 0


def ranks(tp: int, pp: int, ep: int) -> list[Rank]:
    """Return all scheduler processes, in the order of their GPUs."""
    result = []
    for index in range(tp * pp):
        stage, position = divmod(index, tp)
        expert = position * ep // tp
        parts = [
            f" PP{stage}" if pp > 1 else "",
            f" TP{position}" if tp > 1 else "",
            f" EP{expert}" if ep > 1 else "",
        ]
        result.append(Rank(index, stage, position, expert, "".join(parts)))
    return result


def record(message: str, rank: Rank | None = None, now: float | None = None) -> str:
    """Return one log record with its newline."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    return f"[{stamp}{rank.label if rank else ''}] {message}\n"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def _rate(done: int, elapsed: float) -> str:
    if done == 0 or elapsed <= 0:
        return "?it/s"
    per_second = done / elapsed
    return f"{per_second:.2f}it/s" if per_second >= 1 else f"{1 / per_second:.2f}s/it"


def _tail(done: int, total: int, elapsed: float) -> str:
    left = _clock(elapsed / done * (total - done)) if done else "?"
    rate = _rate(done, elapsed)
    return f"{done}/{total} [{_clock(elapsed)}<{left}, {rate if rate == '?it/s' else rate.rjust(6)}]"


def shard_bar(name: str, done: int, total: int, elapsed: float) -> str:
    """Return a piece of the weight-loading bar, begun by a carriage return; the last one ends its line."""
    percent = 100 * done // max(total, 1)
    end = "\n\n" if done == total else ""
    return f"\r{name}: {percent:3d}% Completed | {_tail(done, total, elapsed)}{end}"


def capture_bar(size: int | None, avail: float, done: int, total: int, elapsed: float) -> str:
    """Return a piece of a capture bar; ``size`` None is the bare bar before the first batch size."""
    percent = 100 * done // max(total, 1)
    filled = 10 * done / max(total, 1)
    blocks = "█" * int(filled)
    part = int((filled - int(filled)) * 8)
    bar = (blocks + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(10)[:10]
    head = "" if size is None else f"Capturing batches (bs={size} avail_mem={avail:.2f} GB): "
    end = "\n" if done == total else ""
    return f"\r{head}{percent:3d}%|{bar}| {_tail(done, total, elapsed)}{end}"


_SCHEDULER = "/opt/sglang/lib/python3/site-packages/sglang/srt"


def scheduler_exception(kind: str, message: str, where: str) -> str:
    """Return the message of a scheduler that died of an exception; ``where`` is load, pool, capture or start."""
    frames = [("managers/scheduler.py", "run_scheduler_process", "scheduler = Scheduler(")]
    frames += {
        "load": [
            ("managers/tp_worker.py", "__init__", "self.model_runner = ModelRunner("),
            ("model_executor/model_runner.py", "load_model", "self.model = get_model("),
            ("model_loader/loader.py", "load_model", "self.load_weights_and_postprocess("),
        ],
        "pool": [
            ("managers/tp_worker.py", "__init__", "self.model_runner = ModelRunner("),
            ("model_executor/model_runner.py", "init_memory_pool", "raise RuntimeError("),
        ],
        "capture": [
            (
                "model_executor/model_runner.py",
                "init_device_graphs",
                "self.graph_runner = CudaGraphRunner(self)",
            ),
            ("model_executor/cuda_graph_runner.py", "__init__", "raise Exception("),
        ],
        "start": [("managers/scheduler.py", "__init__", "self.init_model_worker()")],
        "serve": [("managers/scheduler.py", "event_loop_normal", "result = self.run_batch(batch)")],
    }[where]
    trace = "".join(
        f'  File "{_SCHEDULER}/{file}", line {100 + 37 * number}, in {function}\n    {code}\n'
        for number, (file, function, code) in enumerate(frames)
    )
    return f"Scheduler hit an exception: Traceback (most recent call last):\n{trace}{kind}: {message}\n"


def tree_killed(pid: int, *, itself: bool) -> str:
    """Return the message with which SGLang ends its processes, from 0.5.16 on."""
    return f"kill_process_tree called: parent_pid={pid}, include_parent={itself}, pid={pid}"


def scheduler_death(pid: int, rank: int, code: int, modern: bool) -> list[str]:
    """Return what the main process ``pid`` writes when a scheduler dies silently before it is ready."""
    if not modern:
        return [
            record(f"Rank {rank} scheduler is dead. Please check if there are relevant logs."),
            record(f"Exit code: {code}"),
            main_traceback("EOFError", ""),
        ]
    hint = "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
    return [
        record(tree_killed(pid, itself=False)),
        main_traceback("EOFError", ""),
        "\nDuring handling of the above exception, another exception occurred:\n\n",
        main_traceback(
            "RuntimeError",
            f"Rank {rank} scheduler died during initialization (exit code: {code}). {hint}",
        ),
    ]


def main_traceback(kind: str, message: str) -> str:
    """Return the traceback of the main process as Python prints it."""
    return (
        "Traceback (most recent call last):\n"
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "<frozen runpy>", line 88, in _run_code\n'
        f'  File "{_SCHEDULER.removesuffix("/srt")}/launch_server.py", line 54, in <module>\n'
        "    run_server(server_args)\n"
        f"{kind}{': ' * bool(message)}{message}\n"
    )


def server_arguments(fields: dict[str, object], modern: bool) -> str:
    """Return the line that shows all arguments in effect, the API key included."""
    if modern:
        return f"server_args={fields!r}"
    return "server_args=ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in fields.items()) + ")"
