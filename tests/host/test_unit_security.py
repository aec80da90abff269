"""What a real systemd thinks of the unit's hardening, and that the directives do what they are there for."""

from __future__ import annotations

import json
from pathlib import Path

from deployer.config.hardening import HARDENING, LEFT_OUT
from deployer.config.inventory import inventory_from
from deployer.config.profile import load_profile, profile_folders
from deployer.units.bundle import build_bundle
from deployer_rehearsal.hosts import RehearsalHost
from tests.host.test_quoting_real import PATH, UNIT, load, put

#: Checks that are about two directives, by the one that the page names.
OTHER_NAMES = {"UserOrDynamicUser": "User", "RootDirectoryOrRootImage": "RootDirectory"}
#: Directives of the unit that leave a part of what they could take, and say so.
IN_PART = {"CapabilityBoundingSet", "RestrictAddressFamilies", "ProtectSystem"}
LOOK = """\
import json, os, socket, sys
def works(what, *args):
    try:
        what(*args)
    except OSError:
        return False
    return True
print(json.dumps({
    "writes /usr": works(open, "/usr/deployer-test", "w"),
    "writes /sys": works(open, "/proc/sys/vm/swappiness", "w"),
    "writes /tmp": works(open, "/tmp/deployer-test", "w"),
    "writes hub": works(open, "/usr/deployer-hub/test", "w"),
    "TCP": works(socket.socket, socket.AF_INET),
    "netlink": works(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "packets": works(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0),
    "real time": works(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
    "shared memory": works(open, "/dev/shm/deployer-test", "w"),
}), file=open("/run/deployer-look", "w"))
"""


def rendered() -> str:
    """A live unit as it is for a server that runs as root."""
    service = {
        "host": "box",
        "model": "/m",
        "engine": {"python": "/usr/bin/python3"},
        "hf_home": "/usr/deployer-hub",
    }
    site = inventory_from({"hosts": {"box": {"gpus": 8}}, "services": {"kimi": service}}, Path("/site/i.toml"))
    profile = load_profile("tp8", profile_folders())
    return build_bundle(site.service(), site.host("box"), profile, "0.5.12.post1", "0001-tp8").unit


def test_what_systemd_finds_unsafe_is_prevented_or_explained(fresh_host: RehearsalHost) -> None:
    load(fresh_host, rendered())
    report = fresh_host.run(["systemd-analyze", "security", "--json=short", "--no-pager", UNIT])
    names = {item["json_field"].partition("_")[0] for item in json.loads(report) if item["exposure"]}
    exposed = {OTHER_NAMES.get(name, name) for name in names}
    assert not exposed & HARDENING.keys() - IN_PART
    assert exposed <= LEFT_OUT.keys() | IN_PART
    overall = fresh_host.run(["systemd-analyze", "security", "--no-pager", UNIT]).splitlines()[-1]
    assert float(overall.rpartition(": ")[2].split()[0]) <= 7.5, overall


def test_it_is_prevented_and_what_a_server_needs_is_not(fresh_host: RehearsalHost) -> None:
    text = rendered()
    begin, end = text.index("ExecStart="), text.index("\nEnvironment=")
    put(fresh_host, "/run/deployer-look.py", LOOK)
    fresh_host.run(["mkdir", "-p", "/usr/deployer-hub"])
    try:
        one = text[:begin] + "ExecStart=/usr/bin/python3 /run/deployer-look.py" + text[end:]
        load(fresh_host, one.replace("Type=exec", "Type=oneshot").replace("Restart=on-failure\n", ""))
        fresh_host.run(["systemctl", "start", UNIT])
        seen = json.loads(fresh_host.run(["cat", "/run/deployer-look"]))
    finally:
        fresh_host.run(["rm", "-rf", "/usr/deployer-hub", PATH])
    allowed = {"writes /tmp", "writes hub", "TCP", "netlink", "shared memory"}
    assert {name for name, works in seen.items() if works} == allowed
