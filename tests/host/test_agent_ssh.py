"""The way to the host: host keys, logins, sudo, jump hosts, and operators that vanish."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deployer.config.inventory import HostConfig
from deployer.errors import (
    AgentError,
    AuthenticationFailed,
    ChannelLost,
    ConfigError,
    HostError,
    HostKeyRejected,
    HostUnreachable,
)
from deployer.host import ssh
from deployer.host.client import HostClient
from deployer.host.connect import connect
from deployer.host.streams import Events
from deployer.records.destination import Destination
from deployer.records.events import LogLine
from deployer_rehearsal.host import RehearsalHost
from deployer_rehearsal.system import PASSWORD
from tests.host.host_contract import PORT, SERVICE, acquire, go_live, make_place, observe, stage
from tests.patience import PATIENCE, until


def config(host: RehearsalHost, user: str = "root", **changes: Any) -> Destination:
    return HostConfig(**{**host.login(user), **changes}).destination


def key_line(host: RehearsalHost) -> str:
    """The host's public key as known_hosts has it: name, type, key."""
    lines = Path(host.login("root")["known_hosts"]).read_text().splitlines()
    return next(line for line in lines if f"[{host.address}]:{host.port}" in line.split()[0])


def other_key(tmp_path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    return " ".join((tmp_path / "other.pub").read_text().split()[:2])


# --- logins -----------------------------------------------------------------------------------------------------


def test_a_login_with_sudo_becomes_root_without_being_asked(rehearsal_host: RehearsalHost) -> None:
    def never(_: str) -> str:
        raise AssertionError("nobody may be asked")

    host = connect(config(rehearsal_host, "operator"), password_prompt=never)
    assert host.call("hello")["uid"] == 0
    host.close()


def test_a_sudo_password_is_asked_for_and_reaches_only_sudo(rehearsal_host: RehearsalHost) -> None:
    asked: list[str] = []

    def prompt(who: str) -> str:
        asked.append(who)
        return PASSWORD

    host = connect(config(rehearsal_host, "careful"), password_prompt=prompt)
    assert host.call("hello")["uid"] == 0
    assert asked == [f"careful@{rehearsal_host.name}"]
    host.close()


def test_a_wrong_sudo_password_is_one_attempt_and_ends_soon(rehearsal_host: RehearsalHost) -> None:
    begun = time.monotonic()
    with pytest.raises(AuthenticationFailed, match="1 incorrect password attempt"):
        connect(config(rehearsal_host, "careful"), password_prompt=lambda _: "wrong")
    assert time.monotonic() - begun < ssh.START_TIMEOUT, "nothing runs into a time-out"


def test_a_sudo_password_that_nobody_can_give(rehearsal_host: RehearsalHost) -> None:
    with pytest.raises(AuthenticationFailed, match="no terminal to ask on"):
        connect(config(rehearsal_host, "careful"))


def test_without_sudo_an_ordinary_login_is_refused(rehearsal_host: RehearsalHost) -> None:
    with pytest.raises(AuthenticationFailed, match="must be root"):
        connect(config(rehearsal_host, "operator", sudo="never"))


def test_a_key_that_the_host_does_not_accept(rehearsal_host: RehearsalHost, tmp_path: Path) -> None:
    other_key(tmp_path)
    with pytest.raises(AuthenticationFailed, match="refuses the login"):
        connect(config(rehearsal_host, identity_file=tmp_path / "other"))


def test_a_python_that_is_not_there_or_too_old(rehearsal_host: RehearsalHost) -> None:
    for user in ("root", "operator"):
        for wrong in ("/no/python3", "/bin/false"):
            with pytest.raises(HostError, match=f"in the inventory: {wrong}\\) did not start") as caught:
                connect(config(rehearsal_host, user, python=wrong))
            assert "set `python` of the host" in (caught.value.remedy or "")
    old = "#!/bin/sh\necho 'deployer: needs Python 3.8 or later, this is 3.6.15' >&2; exit 1\n"
    rehearsal_host.run(["install", "-m755", "/dev/stdin", "/usr/local/bin/python-old"], stdin=old)
    with pytest.raises(HostError, match=r"too old: .* 3\.6\.15"):
        connect(config(rehearsal_host, python="python-old"))


def test_a_login_that_talks_first_does_no_harm(rehearsal_host: RehearsalHost) -> None:
    rehearsal_host.run(["tee", "/home/operator/.bashrc"], stdin="echo Welcome; echo to the machine >&2\n")
    try:
        host = connect(config(rehearsal_host, "operator"))
        assert host.call("hello")["uid"] == 0
        host.close()
    finally:
        rehearsal_host.run(["rm", "/home/operator/.bashrc"])


# --- host keys --------------------------------------------------------------------------------------------------


def test_an_unknown_host_key_is_refused_with_its_fingerprint(rehearsal_host: RehearsalHost, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    with pytest.raises(HostKeyRejected, match="is not known") as caught:
        connect(config(rehearsal_host, known_hosts=known))
    printed = subprocess.run(
        ["ssh-keygen", "-lf", "-"],
        input=key_line(rehearsal_host).partition(" ")[2],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert caught.value.detail["offered"] in printed
    assert str(known) in caught.value.message
    assert not known.exists()


def test_accept_new_writes_the_key_once(rehearsal_host: RehearsalHost, tmp_path: Path) -> None:
    known = tmp_path / "new" / "known_hosts"
    for _ in range(2):
        connect(config(rehearsal_host, known_hosts=known, host_keys="accept-new")).close()
    assert len(known.read_text().splitlines()) == 1
    connect(config(rehearsal_host, known_hosts=known)).close()


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_host_key_is_refused_with_both_fingerprints(
    rehearsal_host: RehearsalHost, tmp_path: Path, policy: str
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[{rehearsal_host.address}]:{rehearsal_host.port} {other_key(tmp_path)}\n")
    with pytest.raises(HostKeyRejected, match="has changed") as caught:
        connect(config(rehearsal_host, known_hosts=known, host_keys=policy))
    detail = caught.value.detail
    assert detail["offered"] in caught.value.message
    assert detail["known"] in caught.value.message
    assert detail["offered"] != detail["known"]
    assert str(known) in caught.value.message


def test_a_pinned_key_is_the_only_one_accepted(rehearsal_host: RehearsalHost, tmp_path: Path) -> None:
    pinned: dict[str, Any] = {"host_keys": "pinned", "known_hosts": tmp_path / "none"}
    line = " ".join(key_line(rehearsal_host).split()[1:3])
    connect(config(rehearsal_host, **pinned, host_key=line)).close()
    with pytest.raises(HostKeyRejected) as caught:
        connect(config(rehearsal_host, **pinned, host_key=other_key(tmp_path)))
    connect(config(rehearsal_host, **pinned, host_key=caught.value.detail["offered"])).close()


# --- the way ----------------------------------------------------------------------------------------------------


def test_a_host_that_is_not_there_is_unreachable_within_the_time_allowed(
    rehearsal_host: RehearsalHost,
) -> None:
    begun = time.monotonic()
    with pytest.raises(HostUnreachable, match="cannot be reached"):
        connect(config(rehearsal_host, port=2, connect_timeout=PATIENCE))
    assert time.monotonic() - begun < PATIENCE, "it is known at once"


def test_a_server_that_never_says_a_word_is_unreachable(rehearsal_host: RehearsalHost) -> None:

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HostUnreachable):
        connect(config(rehearsal_host, address="127.0.0.1", port=silent.getsockname()[1], connect_timeout=1.0))


def write_ssh_config(host: RehearsalHost, path: Path, text: str) -> Path:
    login = host.login("root")
    path.write_text(
        text
        + f"Host target jump\n  HostName {host.address}\n  Port {host.port}\n"
        + f"  IdentityFile {login['identity_file']}\n  UserKnownHostsFile {login['known_hosts']}\n"
    )
    return path


@pytest.mark.parametrize("jump", ["", "ProxyJump root@jump", "ProxyJump none"])
def test_ssh_config_and_jump_hosts(rehearsal_host: RehearsalHost, tmp_path: Path, jump: str) -> None:
    path = write_ssh_config(rehearsal_host, tmp_path / "config", f"Host target\n  User operator\n  {jump}\n")
    host = connect(HostConfig(name="target", address="target", ssh_config=path).destination)
    assert host.call("hello")["uid"] == 0
    host.close()


def test_a_jump_host_from_the_inventory(rehearsal_host: RehearsalHost) -> None:
    via = f"root@{rehearsal_host.address}:{rehearsal_host.port}"
    host = connect(config(rehearsal_host, proxy_jump=via))
    assert host.call("hello")["uid"] == 0
    host.close()


def test_a_jump_hosts_key_is_checked_too(rehearsal_host: RehearsalHost, tmp_path: Path) -> None:
    via = f"root@{rehearsal_host.address}:{rehearsal_host.port}"
    known = tmp_path / "known_hosts"
    with pytest.raises(HostKeyRejected):
        connect(config(rehearsal_host, proxy_jump=via, known_hosts=known))


def test_an_ssh_config_that_does_not_exist(rehearsal_host: RehearsalHost, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        connect(config(rehearsal_host, ssh_config=tmp_path / "none"))


# --- operators that vanish --------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["root", "operator", "careful"])
def test_a_connection_that_ends_abandons_the_lease_under_any_login(fresh_host: RehearsalHost, user: str) -> None:
    client = HostClient(connect(config(fresh_host, user), password_prompt=lambda _: PASSWORD))
    acquire(client, ttl=300.0)
    client.close(bye=False)
    watcher = HostClient(connect(config(fresh_host)))

    def abandoned() -> bool:
        lease = watcher.observe({SERVICE: PORT}).lease
        return lease is not None and lease.state == "abandoned"

    until(abandoned)
    watcher.close()


OPERATOR = """
import sys, time
from deployer.config.inventory import HostConfig
from deployer.host.connect import connect
from deployer.host.heartbeat import Heartbeat
from deployer_rehearsal.host import find
from tests.host.host_contract import Connection, acquire, begin, stop
host = find(sys.argv[1])[0]
client = Connection(connect(HostConfig(**host.host_config).destination), host.address)
acquire(client, ttl=300.0)
Heartbeat(client, 300.0).start()
begin(client, "0001-a", "0002-b")
stop(client)
print("stopped", flush=True)
time.sleep(100)
"""


def test_an_operator_killed_in_mid_deployment_is_replaced_by_the_guard(fresh_host: RehearsalHost) -> None:
    place = make_place("ssh", fresh_host)
    client = place.operator()
    go_live(place, client, "0001-a")
    stage(client, "0002-b")
    client.lease_release()
    with subprocess.Popen(
        [sys.executable, "-c", OPERATOR, fresh_host.set], stdout=subprocess.PIPE, text=True
    ) as operator:
        assert operator.stdout is not None
        assert operator.stdout.readline() == "stopped\n"
        operator.send_signal(signal.SIGKILL)
    until(lambda: observe(client).transition is None)
    assert observe(client).running.release == "0001-a"
    place.close()


def until_lost(stream: Events[LogLine, None]) -> None:
    """Read on; lines that were on their way come first."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        stream.next(1.0)


def test_all_waiters_learn_that_the_channel_broke(fresh_host: RehearsalHost) -> None:
    client = HostClient(connect(config(fresh_host)))
    stream = client.journal(SERVICE, follow=True)
    fresh_host.run(["pkill", "-KILL", "-f", "[d]eployer-agent"])
    with pytest.raises(ChannelLost):
        until_lost(stream)
    with pytest.raises(ChannelLost):
        client.hello()
    client.close()


def test_a_refused_request_does_not_disturb_others(fresh_host: RehearsalHost) -> None:
    host = connect(config(fresh_host))
    client = HostClient(host)
    with pytest.raises(AgentError) as caught:
        host.call("listeners", {"port": "many"})
    assert caught.value.code == "bad-request"
    with pytest.raises(AgentError) as caught:
        client.release_read("../../etc", "passwd")
    assert caught.value.code == "bad-request"
    assert client.hello().uid == 0
    client.close()
