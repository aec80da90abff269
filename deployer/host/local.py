"""The agent as a child process: for a host that deploys itself, and for tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

from deployer.errors import HostError
from deployer.host.channel import BOOTSTRAP, FLAGS, ChannelHost, Tail, begin_agent

START_TIMEOUT = 20.0


class ProcessPipe:
    """A child process's stdin and stdout."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,  # Ctrl-C in the terminal is for this process, not for the agent
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._stdin, self._stdout, self._stderr = self._child.stdin, self._child.stdout, self._child.stderr
        self._tail = Tail()
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        with self._stderr:
            while data := self._stderr.read(4096):
                self._tail.add(data)

    def send(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._stdin.write(data) or 0 :]
        except ValueError as error:  # closed by another thread
            raise OSError("the pipe is closed") from error

    def recv(self) -> bytes:
        try:
            return self._stdout.read(65536) or b""
        except ValueError:
            return b""  # closed by another thread

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the child is gone already
            self._stdin.close()
        try:
            self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._collector.join(1.0)

    def finish(self) -> None:
        """Release what is left once nothing is read any more."""
        self._stdout.close()

    def ending(self, wait: float = 0.0) -> tuple[int | None, str]:
        try:
            status: int | None = self._child.wait(wait)
            self._collector.join(1.0)
        except subprocess.TimeoutExpired:
            status = None
        return status, self._tail.text()


class LocalHost(ChannelHost):
    """This machine, or whatever ``prefix`` (an argv) enters before it runs Python."""

    def __init__(
        self,
        name: str = "localhost",
        *,
        python: str = "python3",
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        try:
            pipe = ProcessPipe([*prefix, python, *FLAGS, "-c", BOOTSTRAP], env)
        except OSError as error:
            raise HostError(
                f"{name}: the host's Python (`python` in the inventory: {python}) did not start: "
                f"{error.filename or python}: {error.strerror}",
                remedy="set `python` of the host in the inventory to Python 3.8 or later",
            ) from error
        self._process = pipe
        super().__init__(name, pipe, begin_agent(pipe, name, python=python, timeout=START_TIMEOUT))

    def close(self, *, bye: bool = True) -> None:
        super().close(bye=bye)
        self._process.finish()
