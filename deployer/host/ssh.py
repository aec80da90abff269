"""The connection over SSH: Fabric for the way there (ssh_config, jump hosts, agent keys), bounded in time."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection

from deployer.errors import AuthenticationFailed, ConfigError, HostError, HostKeyRejected, HostUnreachable
from deployer.host import hostkeys
from deployer.host.channel import (
    BOOTSTRAP,
    FLAGS,
    READY,
    ChannelHost,
    Pipe,
    Tail,
    await_ready,
    begin_agent,
    not_ready,
)
from deployer.records.destination import Destination

# Its failures arrive as exceptions; what it logs besides (tracebacks of its threads) is not for the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

ATTEMPTS = 3
START_TIMEOUT = 30.0
SEND_TIMEOUT = 60.0
#: Seconds from sudo's complaint about a password until it is taken as a refusal.
SUDO_PATIENCE = 3.0

#: Asks for the sudo password of ``user@host``; returns it, or None if there is nobody to ask.
PasswordPrompt = Callable[[str], str | None]


#: What paramiko raises, beside OSError, if a connection breaks. A write to a socket that has just died raises EOFError,
#: and so does the write that a read makes to request more.
BREAKS = (EOFError, paramiko.SSHException)
LOST = (OSError, *BREAKS)


@contextlib.contextmanager
def broken() -> Iterator[None]:
    """Raise what paramiko raises for a broken connection as the OSError that a pipe's users expect."""
    try:
        yield
    except BREAKS as error:
        raise ConnectionResetError(str(error) or "the connection broke") from error


class SSHPipe:
    """One SSH channel that runs one command."""

    def __init__(self, transport: paramiko.Transport, command: str, timeout: float) -> None:
        try:
            self._channel = transport.open_session(timeout=timeout)
            self._channel.settimeout(SEND_TIMEOUT)
            self._channel.exec_command(command)
        except LOST as error:
            raise HostUnreachable(f"the host refuses to open a session: {error}") from error
        self.stderr = Tail()
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        while True:
            try:
                with broken():
                    data = self._channel.recv_stderr(4096)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            self.stderr.add(data)

    def send(self, data: bytes) -> None:
        with broken():
            self._channel.sendall(data)

    def recv(self) -> bytes:
        while True:
            with contextlib.suppress(TimeoutError), broken():
                received: bytes = self._channel.recv(65536)
                return received

    def end_input(self) -> None:
        """Close stdin only, so that a reader sees its end."""
        with contextlib.suppress(*LOST):
            self._channel.shutdown_write()

    def close(self) -> None:
        with contextlib.suppress(*LOST):
            self._channel.close()

    def ending(self, wait: float = 0.0) -> tuple[int | None, str]:
        self._channel.status_event.wait(wait)
        self._collector.join(min(wait, 1.0))
        status = self._channel.exit_status if self._channel.status_event.is_set() else -1
        return (None if status == -1 else status), self.stderr.text()


class SSHHost(ChannelHost):
    """A host reached over SSH, with the agent running there as root."""

    def __init__(
        self,
        config: Destination,
        *,
        password_prompt: PasswordPrompt | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connect_with_retries(config)
        try:
            waiting()
            pipe, first = become_root(self._connection, config, password_prompt)
        except BaseException:
            self._connection.close()
            raise
        super().__init__(config.name, pipe, first)

    def close(self, *, bye: bool = True) -> None:
        super().close(bye=bye)
        for connection in chain(self._connection)[::-1]:
            connection.close()


# --- the way there ----------------------------------------------------------------------------------------------


def connect_with_retries(config: Destination) -> Connection:
    """Return an open connection. Only an unreachable host is tried again; a refusal by it is final."""
    for attempt in range(1, ATTEMPTS):
        try:
            return open_connection(config)
        except HostUnreachable:
            time.sleep(0.3 * 2 ** (attempt - 1) + random.uniform(0, 0.3))
    return open_connection(config)


def open_connection(config: Destination) -> Connection:
    """Connect once. Raise HostUnreachable, HostKeyRejected or AuthenticationFailed if that fails."""
    connection = make_connection(config)
    files: list[Path] = []
    for hop in chain(connection):
        files = hostkeys.install(hop.client, config, dict(hop.ssh_config), jump=hop is not connection)
    where = f"{config.name} ({connection.user}@{connection.host}:{connection.port})"
    try:
        connection.open()
    except (HostKeyRejected, ConfigError):
        close_chain(connection)
        raise
    except paramiko.BadHostKeyException as error:
        close_chain(connection)
        offered, known = hostkeys.fingerprint(error.key), hostkeys.fingerprint(error.expected_key)
        raise hostkeys.changed_key(error.hostname, offered, known, str(files[0] if files else "")) from error
    except (paramiko.AuthenticationException, paramiko.PasswordRequiredException) as error:
        close_chain(connection)
        raise authentication_failed(where, error) from error
    except LOST as error:
        close_chain(connection)
        if "authentication methods" in str(error):
            raise authentication_failed(where, error) from error
        if config.identity_file is not None and "private key file" in str(error):
            raise ConfigError(
                f"identity_file {config.identity_file} of host {config.name} is not a private key: {error}",
                remedy="name the private key, not its .pub",
            ) from error
        unnamed = isinstance(error, socket.gaierror)
        raise HostUnreachable(
            f"{where} cannot be reached: {reason(error)}",
            remedy=f"correct hosts.{config.name}.address in the inventory, or the machine's DNS"
            if unnamed
            else f"check hosts.{config.name}.address and port in the inventory, the network, and sshd on the host",
        ) from error
    for hop in chain(connection):
        hop.transport.set_keepalive(config.keepalive)
        bound_silence(hop.transport.sock, config.keepalive)
    return connection


def authentication_failed(where: str, error: Exception) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"{where} refuses the login: {error}",
        remedy="check `user` and `identity_file` in the inventory, and that the key is in the agent (`ssh-add -l`)",
    )


def reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved ({error.strerror})"
    inner = getattr(error, "errors", None)  # paramiko collects one error for each address that was tried
    if isinstance(inner, dict) and inner:
        return reason(next(iter(inner.values())))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def bound_silence(sock: Any, keepalive: int) -> None:
    """Let the kernel end a connection whose far side no longer acknowledges the keepalives."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, (keepalive * 2 + 15) * 1000)


def make_connection(config: Destination) -> Connection:
    """Return Fabric's connection, unopened, with ssh_config, jump hosts and time-outs as configured."""
    path = config.ssh_config
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"ssh_config {path} of host {config.name} does not exist")
    try:
        fabric = Config(runtime_ssh_path=path)
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise ConfigError(
            f"{path or 'ssh_config'} cannot be used: {error}",
            remedy="correct it: `ssh -G HOST` shows how OpenSSH reads it",
        ) from error
    timeout = max(1, math.ceil(config.connect_timeout))
    kwargs: dict[str, Any] = {"banner_timeout": timeout, "auth_timeout": timeout, "channel_timeout": timeout}
    if config.identity_file is not None:
        check_identity(Path(config.identity_file), config.name)
        kwargs["key_filename"] = [config.identity_file]
    known = fabric.base_ssh_config.lookup(config.address)
    jump = config.proxy_jump or known.get("proxyjump")
    return Connection(
        config.address,
        user=config.user,
        port=config.port if config.port != 22 or "port" not in known else None,
        config=fabric,
        gateway=jump_chain(jump, fabric, timeout, kwargs, (config.address,)) if jump else None,
        connect_timeout=timeout,
        connect_kwargs=dict(kwargs),
    )


def check_identity(path: Path, name: str) -> None:
    """Raise ConfigError if the key file of a host cannot be read: no key would be offered at all."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"identity_file {path} of host {name} cannot be read: {error.strerror}",
            remedy="correct `identity_file` in the inventory, or leave it out: then ssh_config, the agent (`ssh-add "
            "-l`) and the usual files in ~/.ssh give the keys",
        ) from error


def jump_chain(
    jump: str, fabric: Config, timeout: int, kwargs: dict[str, Any], seen: tuple[str, ...]
) -> Connection | bool:
    """Return the last jump host, each reached through the one before it, as with ``ssh -J a,b``. False for "none"."""
    last: Connection | bool = False
    if jump.strip().lower() == "none":
        return last
    for hop in (part.strip() for part in jump.split(",")):
        name = hop.rpartition("@")[2].partition(":")[0]
        if name in seen:  # `Host *` with a ProxyJump covers the jump host, too
            continue
        if last is False:
            inner = fabric.base_ssh_config.lookup(name).get("proxyjump")
            last = jump_chain(inner, fabric, timeout, kwargs, (*seen, name)) if inner else False
        last = Connection(hop, config=fabric, gateway=last, connect_timeout=timeout, connect_kwargs=dict(kwargs))
    return last


def chain(connection: Connection) -> list[Connection]:
    """Return the jump hosts and the target, in the order in which they are connected."""
    hops = [connection]
    while isinstance(hops[0].gateway, Connection):
        hops.insert(0, hops[0].gateway)
    return hops


def close_chain(connection: Connection) -> None:
    """Close a connection that may be half-open. (Fabric closes the client only if opening succeeded.)"""
    for hop in reversed(chain(connection)):
        with contextlib.suppress(*LOST):
            hop.client.close()


# --- becoming root ----------------------------------------------------------------------------------------------


def become_root(
    connection: Connection, config: Destination, password_prompt: PasswordPrompt | None
) -> tuple[Pipe, bytes]:
    """Start the agent as root: by the login itself, by ``sudo -n``, or with a password for ``sudo -S``."""
    python = f"{shlex.quote(config.python)} {' '.join(FLAGS)} -c '{BOOTSTRAP}'"

    def start(prefix: str) -> SSHPipe:
        return SSHPipe(connection.transport, prefix + python, config.connect_timeout)

    if connection.user == "root" or config.sudo == "never":
        pipe = start("")
        return pipe, begin_agent(pipe, config.name, python=config.python, timeout=START_TIMEOUT)
    pipe = start("env LC_ALL=C sudo -n -- ")
    seen = await_ready(pipe, START_TIMEOUT)
    if READY in seen:
        return pipe, begin_agent(Primed(pipe, seen), config.name, python=config.python, timeout=START_TIMEOUT)
    status, stderr = pipe.ending(2.0)
    pipe.close()
    if "password is required" not in stderr:
        raise refused_by_sudo(config, connection.user, status, stderr)
    password = password_prompt(f"{connection.user}@{config.name}") if password_prompt else None
    if password is None:
        raise AuthenticationFailed(
            f"{config.name}: sudo wants a password for {connection.user}, and there is no terminal to ask on",
            remedy="run deployer in a terminal, log in as root, or give that account a NOPASSWD rule for sudo",
        )
    pipe = start("env LC_ALL=C sudo -k -S -p '' -- ")
    seen = give_password(pipe, password)
    if READY not in seen:
        status, stderr = pipe.ending(10.0)
        pipe.close()
        raise refused_by_sudo(config, connection.user, status, stderr)
    return pipe, begin_agent(Primed(pipe, seen), config.name, python=config.python, timeout=START_TIMEOUT)


def give_password(pipe: SSHPipe, password: str) -> bytes:
    """Send the password, and nothing else before READY: to sudo every further line would be another attempt."""
    done = threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not done.wait(0.1):
            complained = pipe.stderr.last and time.monotonic() > pipe.stderr.last + SUDO_PATIENCE
            if complained or time.monotonic() > deadline:
                pipe.end_input()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        pipe.send(password.encode("utf-8") + b"\n")
        return await_ready(pipe, START_TIMEOUT + 15.0)
    except OSError:
        return b""
    finally:
        done.set()


def refused_by_sudo(config: Destination, user: str, status: int | None, stderr: str) -> HostError:
    """Return why sudo did not start the agent, by what it printed."""
    # sudo gives a reason for each refusal of its own.
    no_program = "command not found" in stderr or not stderr.strip()
    if "needs Python" in stderr or status in (126, 127) or (no_program and status is not None):
        return not_ready(config.name, config.python, status, stderr)
    last = stderr.strip().splitlines()[-1] if stderr.strip() else f"exit status {status}"
    return AuthenticationFailed(
        f"{config.name}: {user} cannot become root with sudo: {last}",
        remedy="check the password and `sudo -l` of that account on the host, or log in as root",
    )


class Primed:
    """A pipe of which something has already been read."""

    def __init__(self, pipe: Pipe, seen: bytes) -> None:
        self._pipe, self._seen = pipe, seen
        self.send, self.close, self.ending = pipe.send, pipe.close, pipe.ending

    def recv(self) -> bytes:
        seen, self._seen = self._seen, b""
        return seen or self._pipe.recv()
