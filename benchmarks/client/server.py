"""The server of known schedule: compiled, started, asked. See ``server.c``."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client.figures import Served, served

SOURCE = Path(__file__).with_name("server.c")


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    pid: int
    threads: int = 1

    @property
    def url(self) -> str:
        """Its address, without ``/v1``."""
        return f"http://127.0.0.1:{self.port}"

    def schedule(self, ttft: float, itl: float, *, in_step: bool = False) -> None:
        """Of requests from now on, in seconds; ``itl`` 0: as fast as the client takes it.

        ``in_step``: all streams' tokens come at the same moments, as where a batch is decoded; the first is later by
        up to one gap.
        """
        self._get(f"/_set?ttft_us={round(ttft * 1e6)}&itl_us={round(itl * 1e6)}&in_step={in_step:d}")

    def log(self) -> list[Served]:
        """What was served since it was last asked."""
        return served(self._get("/_log"))

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers={"connection": "close"})
            return connection.getresponse().read()
        finally:
            connection.close()


def compiled(folder: Path) -> Path:
    """The program, built in ``folder`` unless it is there already. SystemExit where there is no compiler."""
    program = folder / "bench-server"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("the server of known schedule needs a C compiler (Debian: apt-get install gcc libc6-dev)")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-pthread", "-o", str(program), str(SOURCE)], check=True)
    return program


@contextlib.contextmanager
def running(program: Path, *, threads: int = 1, cores: Sequence[int] | None = None) -> Iterator[Server]:
    """The server, until the end of the block; on ``cores`` only."""
    command = [str(program), str(threads)]
    if cores is not None:
        command = ["taskset", "-c", ",".join(map(str, cores)), *command]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline()), process.pid, threads)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
