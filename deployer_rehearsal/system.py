"""The operating system of a practice host: its units and logins, and what it must not see of the machine."""

from __future__ import annotations

import secrets
from pathlib import Path

from deployer_rehearsal.layer import Layer

SSH_PORT = 2222
PASSWORD = "rehearsal"
"""The password of the login user ``careful``, who needs one for sudo."""

_PASSWORD_HASH = (
    "$6$deployerpractic$INUmf2vJCcvPJhbRnFba2GO29cvMSRXU7Aq95.d3tLdj97OdNU5jyEE81QirtmtZ0rmA8TUjGE6gzty5QKNTZ/"
)
_FIRST_ID = 7700
_USERS = ("operator", "careful")
LOGINS = ("root", *_USERS)

# Units that other units of the distribution want at boot and that a host needs. All others are masked: the machine's
# cron jobs, mounts, databases and clean-up of temporary files do not belong in a rehearsal.
_KEPT = {
    "dbus.service",
    "dbus.socket",
    "systemd-journal-flush.service",
    "systemd-journald-dev-log.socket",
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-logind.service",
    "systemd-user-sessions.service",
}
_UNIT_FOLDERS = ("usr/lib/systemd/system", "lib/systemd/system")
_GENERATORS = ("usr/lib/systemd/system-generators", "usr/local/lib/systemd/system-generators")
_ENVIRONMENT_GENERATORS = ("usr/lib/systemd/system-environment-generators",)
_HIDDEN = (
    "/etc/systemd/system",
    "/etc/systemd/user",
    "/etc/systemd/system-generators",
    "/etc/systemd/system.conf.d",
    "/etc/systemd/journald.conf.d",
    "/etc/systemd/logind.conf.d",
    "/etc/sudoers.d",
    "/home",
    "/root",
    "/usr/local/lib/systemd/system",
    "/var/lib/deployer",
    "/var/lib/systemd",
    "/var/log/journal",
)

_TARGET = """\
[Unit]
Description=Practice host
Wants=multi-user.target rehearsal-gpus.service
Requires=rehearsal-sshd.service
After=multi-user.target rehearsal-sshd.service
AllowIsolate=yes
"""
_SSHD_UNIT = """\
[Unit]
Description=OpenSSH server of the practice host
After=systemd-user-sessions.service

[Service]
Type=exec
ExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/rehearsal_sshd_config
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
Restart=on-failure
RuntimeDirectory=sshd
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
"""
# Where engines of any user report to nvidia-smi what they hold of the GPUs.
_GPUS_UNIT = """\
[Unit]
Description=GPUs of the practice host
DefaultDependencies=no
Before=basic.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mkdir -p -m 1777 /run/sglang-standin
"""
_SSHD_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey /etc/ssh/rehearsal_host_key
AuthorizedKeysFile /etc/ssh/rehearsal_authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
UseDNS no
PrintMotd no
MaxSessions 50
MaxStartups 100:30:200
Subsystem sftp internal-sftp
"""
_SUDOERS = """\
Defaults env_reset
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
operator ALL=(ALL:ALL) NOPASSWD: ALL
careful ALL=(ALL:ALL) ALL
"""
_JOURNAL = "[Journal]\nStorage=persistent\nSystemMaxUse=256M\n"


def write_system(
    layer: Layer,
    *,
    name: str,
    address: str,
    host_key: str,
    client_key: str,
    hidden: list[Path],
    python: str,
) -> None:
    """Write units, accounts and SSH server of one host.

    ``hidden`` are more folders of the machine to hide; ``python`` runs the agent if the system has none.
    """
    layer.directory("/")
    for folder in (*map(Path, _HIDDEN), *hidden):
        layer.directory(folder, opaque=True)
    _write_units(layer)
    _write_accounts(layer)
    layer.file("/etc/hostname", name + "\n")
    layer.file("/etc/hosts", f"127.0.0.1 localhost\n{address} {name}\n")
    layer.file("/etc/fstab", "")
    layer.file("/etc/crypttab", "")
    layer.file("/etc/machine-id", secrets.token_hex(16) + "\n", 0o444)
    layer.link("/var/lib/dbus/machine-id", "/etc/machine-id")
    layer.file("/etc/systemd/journald.conf.d/rehearsal.conf", _JOURNAL)
    layer.file("/etc/ssh/rehearsal_sshd_config", _SSHD_CONFIG.format(port=SSH_PORT, address=address))
    layer.file("/etc/ssh/rehearsal_host_key", host_key, 0o600)
    layer.file("/etc/ssh/rehearsal_authorized_keys", client_key)
    layer.file("/etc/sudoers", _SUDOERS, 0o440)
    if not (layer.lower / "usr/bin/python3").exists():
        layer.link("/usr/local/bin/python3", python)


def _write_units(layer: Layer) -> None:
    for name in _wanted_by_the_machine(layer.lower) - _KEPT:
        layer.link(f"/etc/systemd/system/{name}", "/dev/null")
    for kind, folders in (("system", _GENERATORS), ("system-environment", _ENVIRONMENT_GENERATORS)):
        for folder in folders:
            for generator in sorted((layer.lower / folder).glob("*")):
                layer.link(f"/etc/systemd/{kind}-generators/{generator.name}", "/dev/null")
    # Both would empty temporary folders of the machine; a host's own go with it.
    layer.link("/etc/systemd/system/systemd-tmpfiles-setup.service", "/dev/null")
    layer.link("/etc/systemd/system/systemd-tmpfiles-clean.service", "/dev/null")
    layer.link("/etc/tmpfiles.d/tmp.conf", "/dev/null")
    layer.file("/etc/systemd/system/rehearsal.target", _TARGET)
    layer.file("/etc/systemd/system/rehearsal-sshd.service", _SSHD_UNIT)
    layer.file("/etc/systemd/system/rehearsal-gpus.service", _GPUS_UNIT)
    layer.directory("/etc/systemd/system/multi-user.target.wants")


def _wanted_by_the_machine(root: Path) -> set[str]:
    """Return the names of the units that the distribution's own unit files want, for any target."""
    names: set[str] = set()
    for folder in _UNIT_FOLDERS:
        for wants in (root / folder).glob("*.wants"):
            names |= {entry.name for entry in wants.iterdir()}
    return names


def _write_accounts(layer: Layer) -> None:
    """Write the login users beside root; they replace the machine's own of the same name."""
    passwd, shadow, group = (
        [line for line in layer.read_below(f"/etc/{name}").splitlines() if line.split(":")[0] not in _USERS]
        for name in ("passwd", "shadow", "group")
    )
    # The machine's passwords are not valid on a host, and no account has expired there.
    shadow = [f"{line.split(':')[0]}:*:19700:0:99999:7:::" for line in shadow]
    group.append(f"rehearsal:x:{_FIRST_ID}:")
    for number, user in enumerate(_USERS, start=_FIRST_ID + 1):
        passwd.append(f"{user}:x:{number}:{_FIRST_ID}:rehearsal {user}:/home/{user}:/bin/bash")
        shadow.append(f"{user}:{_PASSWORD_HASH}:19700:0:99999:7:::")
        layer.directory(f"/home/{user}", 0o755, opaque=True, owner=(number, _FIRST_ID))
    layer.file("/etc/passwd", "\n".join(passwd) + "\n")
    layer.file("/etc/shadow", "\n".join(shadow) + "\n", 0o600)
    layer.file("/etc/group", "\n".join(group) + "\n")
