"""Two services on one host: each is checked, applied, looked at and rolled back without touching the other."""

from __future__ import annotations

from deployer_rehearsal import hosts
from tests.e2e.conftest import Site
from tests.patience import until


def two(site: Site, first: str, second: str) -> None:
    """`kimi` and `mini`, each with these lines in its own table."""
    site.write_inventory(more=first, grace=20, lease=20)
    text = site.inventory.read_text()
    hosts, _, service = text.partition("[services.kimi]")
    other = f"[services.kimi]{service}".replace("services.kimi", "services.mini").replace('"kimi"', '"mini"')
    other = other.replace("port = 30000", "port = 30001").replace(first, second)
    site.inventory.write_text(f"{hosts}[services.kimi]{service}\n{other}")


def looked(site: Site, service: str) -> dict[str, str]:
    """What doctor looked at and found fine."""
    document = site.json("doctor", "-s", service, "--seconds", "0")
    return {item["id"]: item["looked"] for item in document["fine"]}


def both_live(site: Site, first: str, second: str) -> None:
    two(site, first, second)
    for service in ("kimi", "mini"):
        assert site.json("apply", "tp2", "--yes", "-s", service)["outcome"] == "live"
    assert looked(site, "kimi")["gpu-shared"] == "only the service's processes are on GPUs 0, 1"
    assert looked(site, "mini")["gpu-shared"] == "only the service's processes are on GPUs 2, 3"


def test_two_may_have_their_own_places_in_one_list(site: Site) -> None:
    both_live(site, "extra_args = { base-gpu-id = 0 }", "extra_args = { base-gpu-id = 2 }")


def test_each_is_left_alone_by_the_other(site: Site) -> None:
    both_live(site, "gpus = [0, 1]", "gpus = [2, 3]")
    before = site.invocation()
    assert site.json("apply", "pp2", "--yes", "-s", "mini")["outcome"] == "live"
    assert site.json("rollback", "--yes", "-s", "mini")["release"] == "0001-tp2"
    assert site.invocation() == before
    kimi = site.json("status", "-s", "kimi")["hosts"][0]
    assert (kimi["unit"]["restarts"], kimi["drift"]) == (0, [])

    # Looked at together, over one connection; a third one's host is dead, which costs nothing but its own line.
    dead = '[hosts.gone]\naddress = "127.0.0.1"\nport = 1\nconnect_timeout = 2\n'
    dead += '[services.lost]\nhost = "gone"\nmodel = "/m"\nengine.python = "/v/bin/python"\n'
    site.inventory.write_text(site.inventory.read_text() + dead)
    every = site.json("status", expect=8)["services"]
    assert [(item["service"], item.get("ok")) for item in every] == [("kimi", True), ("mini", True), ("lost", None)]
    assert every[2]["error"]["kind"] == "HostUnreachable"
    checkups = site.json("doctor", "--seconds", "1", expect=8)["services"]
    assert [item.get("ok") for item in checkups] == [True, True, None]
    plans = site.json("plan", "tp2", expect=8)["services"]
    assert [item.get("action") for item in plans] == ["nothing", "nothing", None]

    # One that would take the other's GPUs is refused: by the inventory, or else by what runs.
    two(site, "gpus = [0, 1]", "gpus = [1, 2]")
    assert "kimi uses GPU 1" in str(site.json("check", "tp2", expect=2))
    two(site, "gpus = [6, 7]", "gpus = [1, 2]")
    refused = site.json("apply", "tp2", "--yes", "-s", "mini", expect=3)
    assert "sglang-kimi.service" in refused["message"]
    assert "another service of deployer's" in str(refused)
    assert site.invocation() == before


def states(site: Site) -> dict[str, str]:
    """What systemd says of each service: enabled or not, running or not."""
    return {
        name: " ".join(
            site.host.run(["sh", "-c", f"systemctl is-{what} sglang-{name}.service || true"]).strip()
            for what in ("enabled", "active")
        )
        for name in ("kimi", "mini")
    }


def test_of_two_that_exclude_each_other_only_one_runs(site: Site) -> None:
    two(site, "gpus = [0, 1]", 'gpus = [0, 1]\nexclusive_with = ["kimi"]')
    assert site.json("apply", "tp2", "--yes", "-s", "mini")["outcome"] == "live"
    assert site.json("apply", "pp2", "-s", "kimi", expect=2)["plan"]["displaces"] == ["mini"]

    site.fault("crash-in-load", when_argv_contains="--pp-size")
    failed = site.json("apply", "pp2", "--yes", "-s", "kimi", expect=5)
    assert failed["message"] == "mini is serving again and healthy; kimi is down, as it was before"
    assert states(site)["mini"] == "enabled active"

    site.fault("clear")
    assert site.json("apply", "pp2", "--yes", "-s", "kimi")["outcome"] == "live"
    assert states(site) == {"kimi": "enabled active", "mini": "disabled inactive"}
    refused = site.json("converge", "--yes", "-s", "mini", expect=3)
    assert "kimi runs on the GPUs or the port of mini" in refused["message"]

    # Enabled by hand, both would start at boot: systemd has to choose.
    site.host.run(["systemctl", "enable", "sglang-mini.service"])
    site.host.run(["sync"])
    hosts.powercut(site.host)
    until(lambda: "enabled active" in states(site).values())
    assert sorted(states(site).values()) == ["enabled active", "enabled inactive"]
