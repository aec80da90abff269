"""A port that is not free: SGLang notices only after it has loaded everything, and then hangs with all it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.sglang.conftest import SglangSite
from tests.e2e.sglang.failing import WRAPPER, interpreter
from tests.e2e.sglang.seen import serves_as_before
from tests.e2e.sglang.test_launch_failures import PROMPT, seconds_to_the_end
from tests.patience import until

PORT = 30001
QUIET_PORT = 30003
# Bound but not listening: who connects is refused, as before, yet the port is taken. What was connected may keep it
# for a minute.
HOLD = """
import pathlib, socket, time
while True:
    try:
        taken = socket.socket()
        taken.bind((%r, %d))
        break
    except OSError:
        time.sleep(0.2)
pathlib.Path("/run/port-is-taken").touch()
time.sleep(3600)
"""


@pytest.fixture
def site(tp1_site: SglangSite) -> Iterator[SglangSite]:
    """tp1 is live on port 30000; the inventory has another port."""
    site = tp1_site
    yield site
    site.host.run(["sh", "-c", "systemctl stop thief 2>/dev/null; systemctl reset-failed thief 2>/dev/null; true"])


def other_port(site: SglangSite, port: int = PORT, **more: str) -> None:
    site.write_inventory(**more)  # type: ignore[arg-type]
    text = site.inventory.read_text()
    assert text.count("port = 30000") == 1
    site.inventory.write_text(text.replace("port = 30000", f"port = {port}"))


def thief(site: SglangSite) -> str:
    """Shell that lets somebody answer on the port."""
    return f"systemd-run -q --unit=thief -p KillSignal=SIGKILL python3 -m http.server {PORT} --bind {site.host.address}"


def test_preflight_refuses_it(site: SglangSite) -> None:
    before = site.invocation()
    site.host.run(["sh", "-c", thief(site)])
    other_port(site)
    until(lambda: f":{PORT}" in site.host.run(["ss", "-ltnH"]))
    document = site.json("apply", "tp1", "--yes", expect=3)
    assert document["outcome"] == "refused"
    assert f"port {PORT} is already answered by python3" in document["message"]
    assert (site.invocation(), site.live()) == (before, "0001-tp1")


def test_a_stranger_who_answers_ends_the_wait(site: SglangSite) -> None:
    site.host.run(["sh", "-ec", interpreter(thief(site))])
    other_port(site, python=WRAPPER)
    document = site.json("apply", "tp1", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    failure = document["failure"]
    assert failure["signature"] == "port_not_ours"
    assert f"port {PORT} is answered by python3" in failure["cause"]
    assert "thief.service" in failure["cause"]
    serves_as_before(site)


def test_the_bind_error_ends_the_wait(site: SglangSite) -> None:
    hold = HOLD % (site.host.address, QUIET_PORT)
    site.host.run(["rm", "-f", "/run/port-is-taken"])
    site.host.run(["systemd-run", "-q", "--unit=thief", "python3", "-c", hold])
    until(lambda: "port-is-taken" in site.host.run(["ls", "/run"]), 90)
    other_port(site, QUIET_PORT)
    document = site.json("apply", "tp1", "--yes", expect=5)
    assert document["outcome"] == "rolled_back"
    failure = document["failure"]
    assert (failure["signature"], failure["phase"]) == ("http_port_busy", "http-up")
    said = "error while attempting to bind on address"
    assert any(said in line for line in failure["evidence"])
    assert seconds_to_the_end(site, said) < PROMPT
    serves_as_before(site)
