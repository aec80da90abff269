"""The files that lead to a set's hosts: OpenSSH configuration, known hosts, and an inventory for deployer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from deployer.resources import shipped
from deployer_rehearsal import sets
from deployer_rehearsal.host import RehearsalHost


def write_ssh_files(folder: Path, hosts: Sequence[RehearsalHost], users: Sequence[str]) -> None:
    """Write keys (once), known_hosts and ssh_config: `ssh -F ssh_config practice-1` logs in as root."""
    sets.make_key(folder / "client_key", "rehearsal operator")
    known = []
    blocks = []
    for host in hosts:
        kind, key = sets.make_key(folder / f"{host.name}_host_key", host.name).split()[:2]
        known.append(f"[{host.address}]:{host.port} {kind} {key}")
        blocks.append(
            f"Host {host.name}\n"
            f"    HostName {host.address}\n"
            f"    Port {host.port}\n"
            f"    User {users[0]}\n"
            f'    IdentityFile "{folder / "client_key"}"\n'
            "    IdentitiesOnly yes\n"
            f'    UserKnownHostsFile "{folder / "known_hosts"}"\n'
            "    StrictHostKeyChecking yes\n"
        )
    (folder / "known_hosts").write_text("\n".join(known) + "\n")
    (folder / "ssh_config").write_text("\n".join(blocks))
    sets.give_to_operator(folder / "client_key")


#: The shipped inventory of each engine: the file, and the set and address in it.
TEMPLATES = {
    "standin": ("rehearsal.toml", sets.DEFAULT_SET, "127.77.0.1"),
    "sglang": ("rehearsal-sglang.toml", sets.SGLANG_SET, "127.77.0.241"),
}


def inventory_text(template: str, folder: Path, hosts: Sequence[RehearsalHost]) -> str:
    """Return the shipped inventory of the hosts' engine with this set's folder and hosts in it."""
    _, usual_set, usual_address = TEMPLATES[hosts[0].engine]
    block = re.search(r"^\[hosts\.practice-1\]\n(?:.+\n)+", template, re.MULTILINE)
    assert block is not None
    text = template.replace(usual_address, hosts[0].address)
    mine = [block[0].replace("practice-1", host.name).replace(usual_address, host.address) for host in hosts]
    start = text.index("[hosts.practice-1]")
    rest = text[start:].partition("\n\n")[2]
    text = text[:start] + "\n".join(mine) + "\n" + rest
    return text.replace(str(sets.DEFAULT_FOLDER / usual_set), str(folder))


def write_inventory(path: Path, hosts: Sequence[RehearsalHost]) -> None:
    """Write a set's inventory."""
    template = (shipped("inventories") / TEMPLATES[hosts[0].engine][0]).read_text()
    path.write_text(inventory_text(template, path.parent, hosts))
