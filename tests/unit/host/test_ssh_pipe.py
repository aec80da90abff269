"""What paramiko raises where a connection breaks is what a pipe's users catch."""

from __future__ import annotations

import threading
from typing import Any, cast

import paramiko
import pytest

from deployer.errors import ChannelLost
from deployer.host.channel import ChannelHost
from deployer.host.ssh import SSHPipe


class Channel:
    """A channel whose connection breaks in mid-message, in one of paramiko's ways."""

    exit_status = -1

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.status_event = threading.Event()

    def settimeout(self, seconds: float) -> None: ...

    def exec_command(self, command: str) -> None: ...

    def close(self) -> None: ...

    def recv_stderr(self, size: int) -> bytes:
        raise self.error

    def recv(self, size: int) -> bytes:
        raise self.error

    def sendall(self, data: bytes) -> None:
        raise self.error


class Transport:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def open_session(self, timeout: float) -> Channel:
        return self.channel


@pytest.mark.parametrize(
    "error", [EOFError(), paramiko.SSHException("no key exchange"), OSError("Socket is closed")], ids=repr
)
def test_a_connection_that_breaks_in_mid_message_is_lost(error: Exception) -> None:
    pipe = SSHPipe(cast(Any, Transport(Channel(error))), "true", 1.0)
    with pytest.raises(OSError, match=str(error) or "the connection broke"):
        pipe.send(b"x")
    with pytest.raises(OSError, match=str(error) or "the connection broke"):
        pipe.recv()
    host = ChannelHost("box", pipe)
    with pytest.raises(ChannelLost):
        host.call("hello")
    host.close()
