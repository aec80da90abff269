"""``python -m sglang.launch_server``: the stand-in's main process.

Parses the arguments as the chosen SGLang version does, prints its launch lines, forks what stands for its schedulers,
binds the port when SGLang would, serves, and ends as SGLang ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from typing import NoReturn

from . import flags, processes
from .api import Api
from .engine import Engine
from .faults import Fault, Faults
from .gpustate import GpuState, memory_held
from .launch import Step, timeline
from .lines import (
    Rank,
    main_traceback,
    ranks,
    record,
    scheduler_death,
    scheduler_exception,
    tree_killed,
)
from .model import LaunchError, read_model
from .resolve import Plan, check_arguments, resolve
from .settings import Settings, load_settings
from .stopping import Stopping
from .web import Connections

#: What a scheduler says when another one has gone.
PEER_GONE = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:25255. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
    "before reporting an error."
)


def write(text: str) -> None:
    """Write to standard error in one piece."""
    data = text.encode("utf-8")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def log(message: str, rank: Rank | None = None) -> None:
    """Write one record."""
    write(record(message, rank))


def kill_self() -> NoReturn:
    """End by SIGKILL, as SGLang's main process does after a failure and, up to 0.5.16, after a drain."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(137)


class Server:
    """One run of the stand-in."""

    def __init__(self, settings: Settings, plan: Plan, faults: Faults) -> None:
        self.settings = settings
        self.plan = plan
        self.faults = faults
        self.group = ranks(plan.tp, plan.pp, plan.ep)
        self.children: list[int] = []
        self.gpu_state = GpuState(settings.state_folder)
        self.holders: dict[int, int] = {}

    # start-up

    def start_children(self) -> None:
        """Fork the schedulers and the detokenizer."""
        deaf = self.faults.get("ignore-sigterm") is not None
        for rank in self.group:
            name = f"sglang::scheduler{rank.label.replace(' ', '_')}"
            pid = processes.spawn(name, deaf=deaf)
            self.children.append(pid)
            gpu = self.plan.physical(rank.index)
            if gpu is not None:
                self.holders[gpu] = pid
        self.children.append(processes.spawn("sglang::detokenizer", deaf=deaf))

    def play(self, steps: list[Step]) -> None:
        """Write each line of the start at its time; return when every scheduler is ready."""
        begin = time.monotonic()
        memory = [0.0] * len(self.holders)
        for step in steps:
            while (wait := begin + step.at * self.settings.scale - time.monotonic()) > 0:
                time.sleep(min(wait, 0.2))
                self.require_schedulers()
            if not self.children and step.rank is not None:
                self.start_children()
                memory = [0.0] * len(self.holders)
            if step.memory is not None:
                if step.rank is None or step.raw:
                    memory = [step.memory * 1024.0] * len(memory)
                elif step.rank.index < len(memory):
                    memory[step.rank.index] = step.memory * 1024.0
                self.gpu_state.write(self.holders, memory, 35)
            if step.text:
                write(step.text) if step.raw else log(step.text, step.rank)
            if step.end == "crash":
                self.crash()
            while step.end == "hang":
                time.sleep(0.2)
                self.require_schedulers()

    def require_schedulers(self) -> None:
        """End with status 1 if a scheduler has died; the detokenizer is not watched this early."""
        schedulers = self.children[:-1]
        dead = processes.exited(schedulers)
        if dead is None:
            return
        for line in scheduler_death(os.getpid(), schedulers.index(dead[0]), dead[1], self.plan.modern):
            write(line)
        processes.kill_all(self.children)
        self.gpu_state.remove()
        raise SystemExit(1)

    def crash(self) -> NoReturn:
        """Report that a scheduler has died, and end everything."""
        log("Received sigquit from a child process. It usually means the child failed.")
        if self.plan.modern:
            log(tree_killed(os.getpid(), itself=True))
        processes.kill_all(self.children)
        self.gpu_state.remove()
        kill_self()

    # serving

    async def serve(self) -> int:
        """Bind, warm up, and serve until a signal; return the exit status."""
        plan = self.plan
        engine = Engine(plan, self.faults, log, self.gpu_state, self.holders)
        stopping = Stopping(deaf=self.faults.get("ignore-sigterm") is not None)
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        log("Using fallback token IDs for yes/no (9693/2152)")
        skip = bool(plan.fields.get("skip_server_warmup"))
        never = self.faults.get("never-ready") is not None
        if skip and not never:
            engine.status = "Up"
            log("The server is fired up and ready to roll!")
        log("INFO:     Application startup complete.")
        host, port = str(plan.fields["host"]), int(plan.fields["port"])
        connections = Connections(Api(engine), log)
        try:
            listener = _listen(host, port)
        except OSError as error:
            log(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
                f"('{host}', {port}): {(error.strerror or '').lower()}"
            )
            log("INFO:     Waiting for application shutdown.")
            # It hangs with all that it holds, and nobody reads what a signal tells.
            await asyncio.Event().wait()
        server = await asyncio.start_server(connections.accept, sock=listener, limit=2**20)
        log(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        watcher = asyncio.create_task(self.watch(engine))
        warmup = None if skip or never else asyncio.create_task(self.warm_up(engine, host, port))

        async def shut() -> None:
            log("INFO:     Shutting down")
            server.close()
            await connections.shut()

        number = await stopping.end(lambda: self.drain(engine), shut)
        for task in (watcher, warmup):
            if task is not None:
                task.cancel()
        return self.finish(number, server, connections, listener, forced=stopping.forced)

    async def warm_up(self, engine: Engine, host: str, port: int) -> None:
        """Send a warm-up request, as SGLang does; until it is answered, /health returns 503."""
        peer = f"INFO:     {host}:"
        await asyncio.sleep(0.35 * self.settings.scale)
        log(f'{peer}{port + 9001} - "GET /model_info HTTP/1.1" 200 OK')
        done = asyncio.Event()
        engine.submit(
            "The capital city of France is",
            8,
            {"ignore_eos": True},
            lambda request, text: done.set() if request.finished else None,
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), max(0.5 * self.settings.scale, 0.05))
        path = "/v1/chat/completions" if self.plan.model.vision else "/generate"
        log(f'{peer}{port + 9002} - "POST {path} HTTP/1.1" 200 OK')
        if self.plan.modern:
            log(f'{peer}{port + 9003} - "POST /freeze_gc HTTP/1.1" 200 OK')
        engine.status = "Up"
        log("The server is fired up and ready to roll!")

    async def watch(self, engine: Engine) -> None:
        """Keep the GPU state current; notice a scheduler that has died or is due to die."""
        while True:
            await asyncio.sleep(0.5)
            engine.write_gpu_state()
            fault = self.faults.get("crash-while-serving")
            if fault and engine.generations >= int(fault.options.get("at", 1)):
                self.crash_serving(fault)
            self.look_at_children()

    def look_at_children(self) -> None:
        """End the server if a child has ended, even by its own SIGTERM while the server drains.

        Meanwhile nobody is answered: it all happens in a signal handler.
        """
        dead = processes.exited(self.children)
        if dead is None:
            return
        pid, code = dead
        ranks_left = self.children[:-1] if self.plan.modern and pid != self.children[-1] else []
        if len(ranks_left) > 1:  # its peers notice first
            peer = self.group[1 if ranks_left.index(pid) == 0 else 0]
            log(scheduler_exception("RuntimeError", PEER_GONE, "serve"), peer)
            processes.kill_all(ranks_left)
        else:
            name = "detokenizer" if pid == self.children[-1] else f"scheduler_{self.children.index(pid)}"
            log(f"Subprocess {name} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
        self.end_serving()

    def end_serving(self) -> NoReturn:
        """End after a child has failed, as late as SGLang, which first waits for dumps of the surviving schedulers."""
        log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        scale = min(1.0, self.settings.scale)
        if self.plan.modern:
            log("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(5.0 * scale)
        if self.plan.modern:
            if any(processes.alive(child) for child in self.children[:-1]):
                log("Waiting 60.0 seconds for CUDA coredumps before exiting.")
                time.sleep(60.0 * scale)
            else:
                log("No live scheduler processes found; skipping py-spy and CUDA coredump.")
            log(tree_killed(os.getpid(), itself=True))
        processes.kill_all(self.children)
        self.gpu_state.remove()
        kill_self()

    def crash_serving(self, fault: Fault) -> NoReturn:
        """Raise an exception in the scheduler while it serves."""
        text = str(fault.options.get("exception", "RuntimeError: CUDA error: an illegal memory access was encountered"))
        kind, _, message = text.partition(": ")
        rank = self.group[int(fault.options.get("rank", len(self.group) - 1)) % len(self.group)]
        log(scheduler_exception(kind, message, "serve"), rank)
        if not self.plan.modern:
            self.crash()
        processes.kill_all(self.children[:-1])  # its peers notice, and end too
        self.end_serving()

    async def drain(self, engine: Engine) -> None:
        """After SIGTERM, wait for requests in progress, however long that takes."""
        engine.draining = True
        log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        poll = max(1.0, min(5.0, 5.0 * self.settings.scale))
        await asyncio.sleep(0.3)
        self.look_at_children()
        while True:
            open_requests = engine.open_requests
            log(
                f"Gracefully exiting... Remaining number of requests {len(open_requests)}. "
                f"Remaining requests remaining_rids={open_requests}."
            )
            if not open_requests:
                return
            await asyncio.sleep(poll)

    def finish(
        self,
        number: int,
        server: asyncio.AbstractServer,
        connections: Connections,
        listener: socket.socket,
        *,
        forced: bool,
    ) -> int:
        """End everything as this version does; return the exit status."""
        port_kept = self.faults.get("port-never-released")
        memory_kept = self.faults.get("memory-never-released")
        if port_kept or memory_kept:
            orphan = processes.spawn_orphan("sglang::schedul", listener if port_kept else None)
            if memory_kept:
                kept = GpuState(self.settings.state_folder, orphan)
                holders = dict.fromkeys(self.holders, orphan)
                kept.write(holders, [self.plan.weight_gib * 1024.0] * len(holders), 0)
        processes.kill_all(self.children)
        self.gpu_state.remove()
        if number == signal.SIGTERM and not self.plan.modern:
            kill_self()
        over = tree_killed(os.getpid(), itself=False) if self.plan.modern else ""
        if number == signal.SIGTERM and over:
            log(over)
        if number == signal.SIGTERM:
            log("INFO:     Shutting down")
        server.close()
        connections.close()
        if not forced:
            log("INFO:     Waiting for application shutdown.")
            log("INFO:     Application shutdown complete.")
        log(f"INFO:     Finished server process [{os.getpid()}]")
        if forced:
            write(main_traceback("KeyboardInterrupt", ""))
        if over:
            log(over)
        if number == signal.SIGINT:
            write(main_traceback("KeyboardInterrupt", ""))
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _fail(settings: Settings, error: LaunchError) -> int:
    if settings.modern:
        log(tree_killed(os.getpid(), itself=False))
    write(main_traceback(error.kind, error.message))
    return 1


def main(argv: list[str]) -> int:
    """Run the stand-in; return the exit status, unless it ends by a signal."""
    settings = load_settings()
    table = flags.load_table(settings.args_folder, settings.version)
    try:
        asked = flags.parse(table, argv)
    except ValueError as error:
        write(main_traceback("ValueError", str(error)))
        return 1
    faults = Faults(settings.fault_path, argv)
    changed = faults.get("wrong-argument")
    overrides = {str(changed.options["argument"]): changed.options.get("value")} if changed else {}
    try:
        model = read_model(str(asked["model_path"]))
        check_arguments(asked)
    except LaunchError as error:
        return _fail(settings, error)
    plan = resolve(asked, model, settings, argv, memory_held(settings.state_folder), overrides)
    server = Server(settings, plan, faults)
    active = {name: fault for name in faults.names() if (fault := faults.get(name)) is not None}
    server.play(timeline(plan, active))
    return asyncio.run(server.serve())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
