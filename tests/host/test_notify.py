"""What the host tells others by itself, on a real systemd: once, after the network, and without showing a secret."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from deployer.host.agent.base import Fail
from deployer.host.agent.outward import Outward
from deployer.records.hook import HostHooks, HostWebhook
from tests.fakes.receiver import Receiver, receiving
from tests.host.host_contract import SERVICE, Place, deploying, observe, stop
from tests.patience import until

SECRET = "s3cr3t-of-the-receiver"
FOLDER = "/var/lib/textfile"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def test_what_the_guard_took_back_is_told_once_and_the_secret_shows_nowhere(place: Place, receiver: Receiver) -> None:
    processes: list[str] = []
    listing = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    receiver.meanwhile = lambda: processes.append(place.run("sh", "-c", listing))
    place.run("mkdir", "-p", FOLDER)
    client = deploying(place)
    webhook = HostWebhook(f"{receiver.url}/{SECRET}", {"X-Key": SECRET}, ("after_restore",), "facts", 30.0)
    programs: dict[str, tuple[str, ...]] = {"after_restore": ("/usr/bin/tee", "/run/told")}
    kept = client.hooks_set(SERVICE, HostHooks("gpu1", programs, 30.0, webhook, FOLDER))
    assert (kept.changed, kept.problem) == (True, None)
    stop(client)
    client.close(bye=False)
    until(lambda: receiver.requests)
    until(lambda: not place.run("systemctl", "list-units", "--all", "--no-legend", "deployer-notify*"))

    ((path, headers, facts),) = receiver.requests
    assert (path, headers["X-Key"]) == (f"/{SECRET}", SECRET)
    assert (facts["event"], facts["release"], facts["previous"]) == ("after_restore", "0001-a", "0002-b")
    assert (facts["by"], facts["serving"], facts["side"]) == ("guard@gpu1", True, "host")
    assert json.loads(place.run("cat", "/run/told")) == facts
    metrics = place.run("cat", f"{FOLDER}/deployer-{SERVICE}.prom")
    assert f'deployer_guard_actions_total{{service="{SERVICE}",by="guard",what="converge",result="ok"}} 1' in metrics
    assert place.run("stat", "-c", "%a", f"{FOLDER}/deployer-{SERVICE}.prom") == "644"

    assert "notify kimi" in processes[0]
    assert SECRET not in processes[0]
    journal = place.run("journalctl", "--no-pager", "--all", "-o", "verbose", "--since=-15min")
    assert "deployer-notify-kimi" in journal
    assert SECRET not in journal
    holders = place.run("grep", "-rls", SECRET, "/var/lib/deployer", "/run/deployer", "/run/systemd", "/etc/systemd")
    assert holders == f"/var/lib/deployer/{SERVICE}/hooks.json"
    assert place.run("stat", "-c", "%a %U", holders) == "600 root"

    again = place.operator()
    assert again.hooks_set(SERVICE, None).changed
    assert place.run("ls", "-A", FOLDER) == ""
    assert observe(again).running_name == "0001-a"


def test_a_redirection_is_not_followed_and_no_answer_does_not_repeat_the_url(receiver: Receiver) -> None:
    outward = Outward()
    receiver.statuses = [302, 503]
    assert outward.post(f"{receiver.url}/x", {"a": 1}, {"X-Key": SECRET}, 30.0) == 302
    assert outward.post(f"{receiver.url}/x", {"a": 1}, {}, 30.0) == 503
    assert outward.post(f"{receiver.url}/x", {"a": 1}, {}, 30.0) == 200
    assert [path for path, _, _ in receiver.requests] == ["/x"] * 3
    for url in (f"http://127.0.0.1:1/{SECRET}", f"file:///{SECRET}", f"http://{SECRET}:x/"):
        with pytest.raises(Fail) as caught:
            outward.post(url, {}, {}, 30.0)
        assert SECRET not in caught.value.message
    with pytest.raises(Fail) as caught:
        outward.post(receiver.url, {}, {"X-Key": f"{SECRET}\n"}, 30.0)
    assert SECRET not in caught.value.message
