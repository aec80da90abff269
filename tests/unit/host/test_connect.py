"""What can be wrong with the way to a host on the operator's own side, and a host that cannot run the agent."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.config.inventory import HostConfig
from deployer.errors import AuthenticationFailed, ConfigError, HostError
from deployer.host import connect, hostkeys, ssh
from deployer.host.channel import not_ready
from deployer.records.destination import Destination

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMCwuW5jS0S6fDg4ZaH8m0gV5cYqu5eHc8y2Vk7zC5kA"


def host(**more: Any) -> Destination:
    return HostConfig.model_validate({"name": "box", "address": "127.0.0.1", **more}).destination


@pytest.mark.parametrize("said", ["", "/bin/flase: No such file or directory"])
@pytest.mark.parametrize("status", [1, 126, 127, None])
def test_a_python_that_does_not_start_is_named_with_its_setting(status: int | None, said: str) -> None:
    error = not_ready("box", "/bin/flase", status, said)
    assert "`python` in the inventory: /bin/flase" in error.message
    assert (said or "no output") in error.message
    assert "connection" not in f"{error.remedy}"
    assert "`python`" in f"{error.remedy}"


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (1, "", HostError),
        (1, "sudo: /bin/flase: command not found", HostError),
        (1, "sudo: ann is not in the sudoers file", AuthenticationFailed),
    ],
)
def test_sudo_that_finds_no_python_is_no_refusal_of_sudo(status: int, said: str, kind: type) -> None:
    error = ssh.refused_by_sudo(host(python="/bin/flase"), "ann", status, said)
    assert type(error) is kind
    assert ("/bin/flase" in error.message) is (kind is HostError)


class Agent:
    """An agent's end of the channel that only greets."""

    hello_says: dict[str, Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.closed = False

    def hello(self) -> dict[str, Any]:
        return {"schema": connect.SCHEMA, **self.hello_says}

    def close(self) -> None:
        self.closed = True


def test_a_host_without_systemd_is_told_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "LocalHost", Agent)
    Agent.hello_says = {"booted": True}
    connect.connect(host(transport="local"))
    Agent.hello_says = {"booted": False, "init": "tini"}
    with pytest.raises(HostError, match=r"box: the host does not run systemd \(its first process is tini\)"):
        connect.connect(host(transport="local"))


@pytest.mark.parametrize("name", ["none", "folder"])
def test_an_identity_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"identity_file .* of host box cannot be read") as caught:
        ssh.make_connection(host(identity_file=str(tmp_path / name)))
    assert str(tmp_path / name) in caught.value.message
    assert caught.value.exit_code == 2


def test_an_ssh_config_that_cannot_be_parsed(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host box\n  Match final all what\nnonsense\n")
    with pytest.raises(ConfigError, match="config cannot be used"):
        ssh.make_connection(host(ssh_config=str(tmp_path / "config")))


BAD = [
    "box ssh-ed25519 a",
    "box ssh-ed25519 not!base64",
    "box \xff\xfe ssh-rsa",
]
PASSED_OVER = [
    "box ssh-ed25519 AAAA",
    "box ssh-rsa AAAAB3NzaC1yc2E",
    "box ssh-ed25519",
    "box",
    "@cert-authority * ssh-ed25519 AAAA",
]


@pytest.mark.parametrize("line", BAD)
def test_a_line_of_known_hosts_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(f"# mine\nother {KEY}\n".encode() + line.encode("latin-1") + b"\n")
    with pytest.raises(ConfigError, match="line 3: not a valid host key") as caught:
        hostkeys.load(paramiko.SSHClient(), path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 2


@given(st.sampled_from(PASSED_OVER) | st.text(st.characters(codec="utf-8", exclude_characters="\r\n")))
def test_any_line_of_known_hosts_is_taken_passed_over_or_named(line: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "known_hosts"
        path.write_text(f"{line}\nother {KEY}\n")
        client = paramiko.SSHClient()
        try:
            hostkeys.load(client, path)
        except ConfigError as error:
            said = error.message
        else:
            assert "other" in client.get_host_keys()
            return
    assert f"{path}, line 1: " in said


def test_a_known_hosts_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    client = paramiko.SSHClient()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        hostkeys.install(client, host(known_hosts=str(tmp_path)), {}, jump=False)
    key = paramiko.ECDSAKey.generate()
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "known_hosts"):
        with pytest.raises(ConfigError, match="the key of box cannot be written to "):
            hostkeys.AcceptNew([path]).missing_host_key(client, "box", key)
    hostkeys.AcceptNew([tmp_path / "new" / "known_hosts"]).missing_host_key(client, "box", key)
    assert (tmp_path / "new" / "known_hosts").read_text() == f"box {key.get_name()} {key.get_base64()}\n"
