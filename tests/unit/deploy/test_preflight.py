"""Every objection of the preflight, each with a host that trips it and one that does not; all are reported at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployer.config.bench import BenchConfig
from deployer.config.inventory import HostConfig, ServiceConfig, inventory_from
from deployer.config.profile import Profile
from deployer.deploy.plan import make_plan
from deployer.deploy.preflight import notes, objections, overruled, restart_objections
from deployer.records.hardware import EngineFacts, GpuProcess, ModelFacts, UnitOwner
from deployer.records.host import HostState
from deployer.sglang.rules import Facts, judge
from tests.unit.deploy.builders import GIB, gpus, host_state, release, service_state


def config(**service: Any) -> tuple[HostConfig, ServiceConfig]:
    table = {"host": "gpu1", "model": "/m", "engine": {"python": "/opt/sglang/bin/python"}} | service
    inventory = inventory_from({"hosts": {"gpu1": {}}, "services": {"kimi": table}}, Path("i.toml"))
    return inventory.host("gpu1"), inventory.service("kimi")


def codes(observed: HostState, **service: Any) -> list[str]:
    host, configured = config(**service)
    return [item.code for item in objections(observed, host, configured, release())]


def listener(**changes: Any) -> Any:
    entry = {
        "address": "127.0.0.1",
        "port": 30000,
        "pid": 99,
        "comm": "nc",
        "cgroup": "/x",
        "unit": "nc.service",
    }
    return [entry | changes]


FIT = host_state(service_state())


def test_a_fit_host_has_no_objections() -> None:
    assert codes(FIT) == []


@pytest.mark.parametrize(
    ("observed", "code"),
    [
        (host_state(service_state(), engine=EngineFacts("/p", False, None, None)), "engine-missing"),
        (host_state(service_state(), engine=EngineFacts("/p", True, None, None)), "sglang-missing"),
        (host_state(service_state(), model=ModelFacts("/m", False, 0, 0, None, None)), "model-missing"),
        (host_state(service_state(), model=ModelFacts("/m", True, 0, 0, "a", None)), "model-config-missing"),
        (host_state(service_state(), engine=EngineFacts("/p", True, "0.5.9", None)), "no-benchmark"),
        (host_state(service_state(), gpus=None), "no-gpus"),
        (host_state(service_state(), gpu_count=4), "too-few-gpus"),
        (
            host_state(service_state(), gpu_processes=(GpuProcess(3, 77, 5 * GIB, "python", "/x", "a.service"),)),
            "gpu-held",
        ),
        (host_state(service_state(), gpus=gpus(8, used=20 * GIB)), "gpu-memory-unaccounted"),
        (host_state(service_state(listeners=listener())), "port-taken"),
        (host_state(service_state(listeners=listener(address="0.0.0.0"))), "port-taken"),
        (host_state(service_state(listeners=listener(pid=None, comm=None, unit=None))), "port-taken"),
        (host_state(service_state(shadows=["/etc/systemd/system/sglang-kimi.service"])), "unit-shadowed"),
        (host_state(service_state(unit={"LoadState": "masked"})), "unit-masked"),
        (host_state(service_state(), disk_free=1024), "disk-full"),
    ],
)
def test_each_objection(observed: HostState, code: str) -> None:
    found = objections(observed, *config(), release())
    assert code in [item.code for item in found]
    assert all(item.message and item.remedy for item in found)


def test_the_services_own_processes_are_no_objection() -> None:
    state = service_state(
        live=release(),
        running="0001-tp8",
        listeners=listener(pid=7, unit="sglang-kimi.service", comm="python"),
    )
    own = tuple(GpuProcess(index, 8, 80 * GIB, "python", "/x", "sglang-kimi.service") for index in range(8))
    assert codes(host_state(state, gpus=gpus(8, used=81 * GIB), gpu_processes=own)) == []


OTHERS = (
    GpuProcess(0, 70, 5 * GIB, "python", "/x", "sglang.service"),
    GpuProcess(1, 71, 5 * GIB, "python", "/x", "sglang.service"),
    GpuProcess(1, 80, GIB, "jupyter", "/u", "user@1000.service"),
    GpuProcess(2, 81, None, "python", "/s", "session-3.scope"),
    GpuProcess(2, 82, None, None, None, None),
    GpuProcess(3, 90, GIB, "python", "/x", "sglang-byhand.service"),
    GpuProcess(4, 91, GIB, "python", "/x", "sglang-other.service"),
)
UNITS = {
    "sglang.service": UnitOwner("always"),
    "user@1000.service": UnitOwner("no"),
    "sglang-byhand.service": UnitOwner("no"),
    "sglang-other.service": UnitOwner("on-failure", "0003-x"),
}


def test_whoever_holds_gpus_is_named_with_unit_and_policy_and_ended_with_one_command() -> None:
    observed = host_state(service_state(), gpu_processes=OTHERS, units=UNITS)
    found = objections(observed, *config(), release())
    assert {item.code for item in found} == {"gpu-held"}
    instead = ", or give the service other GPUs"
    assert [(item.message, item.remedy) for item in found] == [
        (
            "GPUs 0, 1 are in use: 2 x python (pids 70, 71, sglang.service, Restart=always) hold 10.0 GiB",
            "run `systemctl stop sglang.service` on the host" + instead,
        ),
        (
            "GPUs 1, 2 are in use: jupyter (pid 80, user@1000.service, Restart=no), "
            "python (pid 81, session-3.scope), a process (pid 82) hold 1.0 GiB",
            "run `kill 80 81 82` on the host" + instead,
        ),
        (
            "GPU 3 is in use: python (pid 90, sglang-byhand.service, Restart=no) holds 1.0 GiB",
            "run `systemctl stop sglang-byhand.service` on the host" + instead,
        ),
        (
            "GPU 4 is in use: python (pid 91, sglang-other.service, Restart=on-failure) holds 1.0 GiB",
            "that is another service of deployer's: give each its own GPUs, or declare exclusive_with",
        ),
    ]


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("nc.service", "`systemctl stop nc.service`"),
        ("a\\x2db.service", "`systemctl stop 'a\\x2db.service'`"),
        ("sglang-byhand.service", "`systemctl stop sglang-byhand.service`"),
        ("sglang-other.service", "another service of deployer's: give each its own port"),
        ("session-3.scope", "`kill 99`"),
        ("user@1000.service", "`kill 99`"),
        (None, "`kill 99`"),
    ],
)
def test_whoever_has_the_port_is_ended_with_one_command(unit: str | None, words: str) -> None:
    observed = host_state(service_state(listeners=listener(unit=unit)), units=UNITS)
    (found,) = objections(observed, *config(), release())
    assert (found.code, words in found.remedy) == ("port-taken", True), found.remedy


def test_old_processes_of_the_service_are_no_objection_but_need_consent() -> None:
    stray = {"pid": 99, "comm": "python", "cgroup": "/x", "unit": "stray.scope"}
    state = service_state(live=release(), listeners=listener(), strays=[stray])
    held = (GpuProcess(0, 99, 80 * GIB, "python", "/x", "stray.scope"),)
    observed = host_state(state, gpu_processes=held)
    host, service = config()
    assert objections(observed, host, service, release()) == []
    assert restart_objections(observed, host, service) == []
    plan = make_plan(state, release(2, "pp8", argv=("/p", "--pp-size", "8")), healthy=False)
    assert (plan.interrupts, [str(item) for item in plan.strays]) == (True, ["python (pid 99, stray.scope)"])
    assert not make_plan(replace(state, strays=()), release(), healthy=False).interrupts


def test_another_address_is_another_port() -> None:
    assert codes(host_state(service_state(listeners=listener(address="127.0.0.9")))) == []


def test_a_process_on_a_gpu_of_another_service_is_no_objection() -> None:
    other = (GpuProcess(7, 77, 5 * GIB, "python", "/x", "sglang-other.service"),)
    host, service = config(gpus=[0, 1])
    observed = host_state(service_state(), gpu_processes=other)
    assert objections(observed, host, service, release(requested={"tp_size": 2})) == []


def test_a_gpu_that_is_gone_is_named() -> None:
    host, service = config(gpus=[0, 9])
    found = objections(FIT, host, service, release(requested={"tp_size": 2}))
    assert [item.code for item in found] == ["gpu-missing"]
    assert "GPU 9 is not there" in found[0].message


def test_a_way_back_is_not_measured_and_needs_nothing_to_measure_with() -> None:
    host, service = config(bench={"place": "host"})
    without = host_state(service_state(), engine=EngineFacts("/p", True, "0.5.9", None))
    assert [item.code for item in objections(without, host, service, release())] == ["no-benchmark"]
    assert objections(without, host, service, release(), measured=False) == []


def test_a_gate_that_the_benchmark_does_not_measure_is_refused_before_anything_stops() -> None:
    host, service = config()
    service = service.model_copy(update={"bench": BenchConfig(levels=[8])})
    profile = Profile.model_validate({"name": "p", "gate": {"aggregate_tok_s@64": 1.0}})
    findings = judge(Facts.of(profile, service, host, None)).findings
    found = objections(FIT, host, service, release(), findings)
    assert [item.code for item in found] == ["gate-not-measured"]
    assert found[0].message == 'gate."aggregate_tok_s@64": level 64 is not among the benchmark\'s levels (8)'


def test_a_deleted_live_unit_is_put_back_first() -> None:
    known = [release(was_live=True)]
    state = service_state(releases=known, running="0001-tp8", raw={"live": None})
    host, service = config()
    found = objections(host_state(state), host, service, release(2, "pp8"))
    assert [item.code for item in found] == ["live-unit-missing"]
    assert "rollback --to 1" in found[0].remedy
    assert objections(host_state(state), host, service, release()) == []


def test_all_objections_are_reported_not_the_first() -> None:
    observed = host_state(
        service_state(listeners=listener()),
        engine=EngineFacts("/p", False, None, None),
        disk_free=0,
        gpus=None,
    )
    assert codes(observed) == ["engine-missing", "no-gpus", "port-taken", "disk-full"]


def test_a_drop_in_refuses_only_if_it_decides_what_runs() -> None:
    drop_in = "/etc/systemd/system/sglang-kimi.service.d/10-mine.conf"
    host, service = config()
    for keys, refuses in (["MemoryMax"], False), (["ExecStart", "MemoryMax"], True):
        state = service_state(live=release(), shadows=[drop_in], drop_ins=[{"path": drop_in, "keys": keys}])
        observed = host_state(state)
        for against in objections(observed, host, service, release()), restart_objections(observed, host, service):
            assert [item.code for item in against] == (["drop-in-decides"] if refuses else [])
        for item in overruled(service, state):
            assert f"{drop_in} sets ExecStart" in item.message
            assert "systemctl revert sglang-kimi.service" in item.remedy


def test_starting_again_needs_neither_room_nor_a_benchmark() -> None:
    host, service = config()
    engine = EngineFacts("/p", True, "0.5.12.post1", None)
    observed = host_state(service_state(live=release(), listeners=listener()), engine=engine, disk_free=0)
    assert [item.code for item in restart_objections(observed, host, service)] == ["port-taken"]


def test_a_hub_id_is_said_to_mean_a_download() -> None:
    host, service = config(model="moonshotai/Kimi-K2.6")
    observed = host_state(service_state(), model=None)
    assert objections(observed, host, service, release()) == []
    assert "download" in notes(observed, service)[0]
