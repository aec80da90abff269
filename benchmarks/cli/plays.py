"""The same work for Ansible and pyinfra: unit and manifest are in place, the service runs and answers /health."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cli.host import UNIT, PracticeHost

_CONFIG = """\
[defaults]
inventory = inventory.ini
host_key_checking = True
stdout_callback = default
[ssh_connection]
pipelining = {pipelining}
ssh_args = -o UserKnownHostsFile={known_hosts} -o ControlMaster=auto -o ControlPersist=60s
control_path_dir = {sockets}
"""
_INVENTORY = """\
[gpu]
{name} ansible_host={address} ansible_port={port} ansible_user=root ansible_ssh_private_key_file={key} \
ansible_python_interpreter=/usr/bin/python3
"""
_PLAYBOOK = """\
- hosts: gpu
  gather_facts: false
  vars:
    service_port: "{port}"
  tasks:
    - ansible.builtin.template: {{src: unit.j2, dest: {unit_path}, mode: "0644"}}
    - ansible.builtin.copy: {{src: manifest.json, dest: {manifest_path}, mode: "0644"}}
    - ansible.builtin.systemd: {{name: {unit}, state: started, enabled: true}}
    - ansible.builtin.uri: {{url: "{health}", status_code: 200}}
      register: answer
      until: answer.status == 200
      retries: 30
      delay: 1
"""
_PYINFRA_INVENTORY = """\
gpu = [("{name}", {{"ssh_hostname": "{address}", "ssh_port": {port}, "ssh_user": "root", "ssh_key": "{key}",
        "ssh_known_hosts_file": "{known_hosts}"}})]
"""
_PYINFRA_DEPLOY = """\
from pyinfra.operations import files, server, systemd

files.template(src="unit.j2", dest="{unit_path}", mode="644", service_port="{port}")
files.put(src="manifest.json", dest="{manifest_path}", mode="644")
systemd.service(service="{unit}", running=True, enabled=True)
server.shell(commands=["curl --silent --fail --retry 30 --retry-delay 1 --retry-connrefused {health}"])
"""


def write_plays(folder: Path, host: PracticeHost) -> None:
    """Write both plays, their inventories and files into ``folder``."""
    unit_path, manifest_path = host.unit_path(), host.manifest_path()
    unit = host.read(unit_path)
    assert "{{" not in unit, "the unit's text has nothing that a template would expand"
    # One variable, so that there is something to render; the result is the unit's own text.
    (folder / "unit.j2").write_text(unit.replace(str(host.port), "{{ service_port }}"))
    (folder / "manifest.json").write_text(host.read(manifest_path))
    values = {
        "name": host.name,
        "address": host.address,
        "key": host.folder / "client_key",
        "known_hosts": host.folder / "known_hosts",
        "unit": UNIT,
        "unit_path": unit_path,
        "manifest_path": manifest_path,
        "health": host.health,
    }
    (folder / "inventory.ini").write_text(_INVENTORY.format(**values, port=host.ssh_port))
    (folder / "play.yml").write_text(_PLAYBOOK.format(**values, port=host.port))
    for name, pipelining in (("default", False), ("pipelining", True)):
        sockets = folder / f"sockets-{name}"
        (folder / f"{name}.cfg").write_text(
            _CONFIG.format(pipelining=pipelining, known_hosts=values["known_hosts"], sockets=sockets)
        )
    (folder / "hosts.py").write_text(_PYINFRA_INVENTORY.format(**values, port=host.ssh_port))
    (folder / "deploy.py").write_text(_PYINFRA_DEPLOY.format(**values, port=host.port))
