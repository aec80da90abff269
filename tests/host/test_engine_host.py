"""The stand-in engine as a unit of a practice host: journal, nvidia-smi, control group, its end as systemd sees it."""

from __future__ import annotations

import json
import re
import time

import pytest

from deployer_rehearsal import hosts
from deployer_rehearsal.engine_venv import ENGINE_PYTHON
from deployer_rehearsal.hosts import RehearsalHost
from deployer_rehearsal.model import MODEL, SHARDS
from tests.patience import PATIENCE, until

UNIT = """\
[Service]
Type=exec
{more}
ExecStart={python} -m sglang.launch_server --model-path {model} --host {address} --port 30000 {parallel}
KillMode={kill}
TimeoutStopSec={stop}
LogRateLimitIntervalSec=1ms
LogRateLimitBurst=1000000
"""
APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
GPUS = ["nvidia-smi", "--query-gpu=index,memory.used,utilization.gpu", "--format=csv,noheader,nounits"]


def begin(
    host: RehearsalHost, unit: str, parallel: str, *, stop: int = 20, more: str = "", kill: str = "mixed"
) -> None:
    text = UNIT.format(
        python=ENGINE_PYTHON,
        model=MODEL,
        address=host.address,
        parallel=parallel,
        stop=stop,
        more=more,
        kill=kill,
    )
    host.run(["sh", "-c", f"cat > /run/systemd/system/{unit}.service"], stdin=text)
    host.run(["systemctl", "daemon-reload"])
    host.run(["systemctl", "reset-failed"])
    host.run(["systemctl", "start", unit])


def journal(host: RehearsalHost, unit: str) -> str:
    return host.run(["journalctl", "-u", unit, "-o", "cat", "--all", "--no-pager", "-b"])


def shown(host: RehearsalHost, unit: str, *names: str) -> list[str]:
    words = ["systemctl", "show", unit, *(f"-p{name}" for name in names)]
    found = dict(line.split("=", 1) for line in host.run(words).splitlines() if "=" in line)
    return [found[name] for name in names]


def wait_for(host: RehearsalHost, unit: str, text: str) -> None:
    end = time.monotonic() + PATIENCE
    while text not in journal(host, unit):
        assert time.monotonic() < end, journal(host, unit)[-2000:]
        time.sleep(0.2)


def listening(host: RehearsalHost) -> bool:
    return f"{host.address}:30000" in host.run(["ss", "-ltnH"])


@pytest.fixture
def host(fresh_host: RehearsalHost) -> RehearsalHost:
    hosts.configure(fresh_host, scale=0.1)
    return fresh_host


@pytest.fixture
def unit(request: pytest.FixtureRequest) -> str:
    """A unit of its own for each test: the journal keeps what earlier ones wrote."""
    return "sglang-" + re.sub(r"[^a-z0-9]+", "-", str(request.node.name)).strip("-")


def test_a_whole_life(host: RehearsalHost, unit: str) -> None:
    begin(host, unit, "--pp-size 8 --pp-async-batch-depth 8 --cuda-graph-max-bs 8")
    wait_for(host, unit, "ready to roll")
    text = journal(host, unit)
    assert f"100% Completed | {SHARDS}/{SHARDS}" in text
    assert "PP7] max_total_num_tokens=" in text
    apps = [line.split(", ") for line in host.run(APPS).splitlines()]
    assert len({uuid for uuid, _, _ in apps}) == 8
    assert all(80_000 < int(memory) < 97_000 for _, _, memory in apps)
    (group,) = shown(host, unit, "ControlGroup")
    members = host.run(["sh", "-c", f"cat $(find /sys/fs/cgroup -path '*{group}/cgroup.procs' | head -1)"]).split()
    assert {pid for _, pid, _ in apps} <= set(members)
    body = json.dumps({"prompt": "hello", "max_tokens": 4})
    answer = host.run(["curl", "-sS", f"http://{host.address}:30000/v1/completions", "-d", body])
    assert json.loads(answer)["usage"]["completion_tokens"] == 4
    host.run(["systemctl", "stop", unit])
    assert shown(host, unit, "Result", "ExecMainStatus") == ["signal", "9"]
    assert not listening(host)
    assert all(int(line.split(", ")[1]) < 50 for line in host.run(GPUS).splitlines())


def test_a_crash_is_seen_by_systemd(host: RehearsalHost, unit: str) -> None:
    hosts.fault(host.set, host.name, "oom-in-capture", {"when_argv_contains": "--tp-size"})
    begin(host, unit, "--tp-size 8")
    wait_for(host, unit, "Main process exited")
    assert shown(host, unit, "ActiveState", "Result", "ExecMainStatus") == ["failed", "signal", "9"]
    assert "Capture cuda graph failed: CUDA out of memory" in journal(host, unit)


def test_an_engine_of_an_ordinary_user_on_some_of_the_gpus(host: RehearsalHost, unit: str) -> None:
    hosts.fault(host.set, host.name, "crash-in-load", {"once": True})
    more = "User=operator\nUMask=0077\nEnvironment=CUDA_VISIBLE_DEVICES=2,3,4,5"
    begin(host, unit, "--tp-size 4", more=more)
    wait_for(host, unit, "Main process exited")
    begin(host, unit, "--tp-size 4", more=more)
    wait_for(host, unit, "ready to roll")
    rows = [line.split(", ") for line in host.run(["sudo", "-u", "careful", *GPUS]).splitlines()]
    assert [index for index, memory, _ in rows if int(memory) > 80_000] == ["2", "3", "4", "5"]
    assert [index for index, memory, _ in rows if int(memory) < 50] == ["0", "1", "6", "7"]


@pytest.mark.parametrize("kill", ["process", "mixed"])
def test_an_orphan_keeps_the_port_where_the_unit_lets_it(host: RehearsalHost, unit: str, kill: str) -> None:
    hosts.fault(host.set, host.name, "port-never-released")
    begin(host, unit, "--tp-size 8", stop=3, kill=kill)
    wait_for(host, unit, "ready to roll")
    host.run(["systemctl", "stop", unit])
    assert "Gracefully exiting" in journal(host, unit)
    assert listening(host) == (kill == "process")
    if listening(host):
        host.run(["systemctl", "kill", "--signal=KILL", unit])
        until(lambda: not listening(host))


def test_idle_gpus_without_an_engine(host: RehearsalHost) -> None:
    assert host.run(APPS) == ""
    assert len(host.run(GPUS).splitlines()) == 8
