"""The agent on a real systemd: what only a real one can show."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from deployer.errors import AgentError, LeaseHeld, LeaseLost
from deployer.host.client import Limits
from deployer.records.answers import Started, VerifyReport
from deployer.records.events import LogEvent, LogLine, ProcEvent, RunLine, UnitEvent, WatchEvent
from deployer.records.hook import HostHooks
from deployer.records.release import Release
from deployer.records.step import Step
from deployer_rehearsal import hosts
from tests.host.host_contract import (
    ENGINE,
    PORT,
    SERVICE,
    UNIT,
    Connection,
    Place,
    acquire,
    begin,
    converge,
    converge_unasked,
    deploying,
    finish,
    go_live,
    make_other_live,
    observe,
    other_service,
    stage,
    stop,
    take_its_place,
    unit_text,
)
from tests.patience import PATIENCE, one_within, until

LIVE = f"/usr/local/lib/systemd/system/{UNIT}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"


def audit(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.run("cat", f"/var/lib/deployer/{SERVICE}/audit.jsonl").splitlines()]


# --- staging and probing ----------------------------------------------------------------------------------------


def test_private_files_belong_to_the_engines_account(place: Place) -> None:
    client = place.operator()
    files: dict[str, Any] = {"env": {"text": "K=v\n", "mode": "0600"}, "unit": {"text": "u", "mode": 0o644}}
    client.stage(Release(SERVICE, "0001-a", number=1), files, user="operator")
    folder = f"/var/lib/deployer/{SERVICE}/releases/0001-a"
    assert place.run("stat", "-c", "%a %U", f"{folder}/env") == "600 operator"
    assert place.run("stat", "-c", "%a %U", f"{folder}/unit") == "644 root"
    assert place.run("stat", "-c", "%a", folder) == "755"


def test_what_an_interrupted_stage_left_is_no_release_and_goes_with_the_next_prune(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    left = f"/var/lib/deployer/{SERVICE}/releases/.0002-b.1234.tmp"
    place.write(f"{left}/manifest.json", '{"release": "0002-b"}')
    assert [item.release for item in observe(client).releases] == ["0001-a"]
    client.prune(SERVICE, 10)
    assert place.run("ls", "-A", f"/var/lib/deployer/{SERVICE}/releases") == "0001-a"


def test_a_stage_that_fails_leaves_nothing(place: Place) -> None:
    client = place.operator()
    with pytest.raises(AgentError):
        client.stage(Release(SERVICE, "0001-a", number=1), {"ok": {"text": "x"}, "../evil": {"text": "x"}})
    assert place.run("ls", "-A", f"/var/lib/deployer/{SERVICE}/releases") == ""


NASTY = [
    "/usr/bin/python3",
    "$HOME",
    "${PATH}",
    "100%",
    "%h%%",
    '{"a": "b c", "d": [1]}',
    "it's",
    "semi;colon",
    ";",
    "back\\slash\\n",
    "tab\there",
    "line\nbreak",
    "grüße 模型",
    "",
    " lead and trail ",
    "#hash",
    "@at",
    "-",
    "a=b",
]


def quote(word: str) -> str:
    for special, escape in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("\n", "\\n"), ("\t", "\\t")):
        word = word.replace(special, escape)
    return f'"{word}"'


def test_probe_reads_back_exactly_what_systemd_understood(place: Place) -> None:
    client = place.operator()
    command = " ".join(map(quote, NASTY))
    report = client.probe(SERVICE, f'[Service]\nType=exec\nExecStart=:{command}\nEnvironment="A=b c"\n')
    assert list(report.argv) == NASTY
    assert (report.verify, report.load_error) == (VerifyReport(0), None)
    assert report.properties["Environment"] == ["A=b c"]
    assert "deployer-probe" not in place.run("ls", "/run/systemd/system")


@pytest.mark.parametrize(
    ("line", "word"),
    [("Unknwon=1", "Unknwon"), ("Restart=maybe", "maybe"), ("EnvironmentFile=relative", "relative")],
)
def test_probe_reports_what_systemd_warns_about(place: Place, line: str, word: str) -> None:
    report = place.operator().probe(SERVICE, f"[Service]\nExecStart=/bin/true\n{line}\n")
    assert any(word in item and UNIT in item for item in report.verify.lines), report
    assert report.verify.status != 0


def test_probe_of_a_unit_that_cannot_be_loaded(place: Place) -> None:
    report = place.operator().probe(SERVICE, "[Service]\nType=exec\n")
    assert report.verify.status != 0
    assert report.load_error
    assert report.argv == ()


def test_probe_leaves_a_running_server_alone(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a")
    client.probe(SERVICE, unit_text("0002-b", place))
    state = observe(client)
    assert (state.unit.invocation_id, state.unit.restart) == (started.invocation_id, "on-failure")


# --- what is in force -------------------------------------------------------------------------------------------


def test_after_promotion_the_live_text_is_in_force_and_linked(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    state = observe(client)
    assert (state.unit.fragment, state.unit.restart, state.unit.needs_reload) == (LIVE, "on-failure", False)
    assert place.run("readlink", LINK) == LIVE
    assert place.run("systemctl", "is-enabled", UNIT) == "enabled"
    assert place.run("find", "/etc/systemd/system", "/run/systemd/system", "-name", UNIT) == LINK


def test_converge_corrects_a_wrong_enablement_link(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a")
    place.run("ln", "-sfn", f"/run/systemd/system/{UNIT}", LINK)
    answer = converge(client)
    assert place.run("readlink", LINK) == LIVE
    assert "enabled" in answer.actions
    assert observe(client).unit.invocation_id == started.invocation_id


def test_converge_does_not_enable_what_was_disabled_unless_asked(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    place.run("rm", LINK)
    converge_unasked(client)
    assert not observe(client).enabled
    converge(client)
    assert observe(client).enabled


def test_a_unit_that_outranks_ours_is_found_and_nothing_is_started(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    place.write(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/bin/sleep 1000\n")
    place.write(f"/etc/systemd/system/{UNIT}.d/more.conf", "[Service]\nNice=5\n")
    with pytest.raises(AgentError) as caught:
        client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    assert caught.value.code == "shadowed"
    state = observe(client)
    assert set(state.shadows) == {f"/etc/systemd/system/{UNIT}", f"/etc/systemd/system/{UNIT}.d/more.conf"}
    assert (state.candidate, state.running) == (None, None)


def test_a_mask_is_found(place: Place) -> None:
    place.run("ln", "-s", "/dev/null", f"/run/systemd/system/{UNIT}")
    state = observe(place.connect())
    assert state.candidate is None
    assert state.shadows == (f"/run/systemd/system/{UNIT}",)


# --- stopping ---------------------------------------------------------------------------------------------------


def test_what_ignores_sigterm_is_killed_with_all_its_processes(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a", "--ignore-term", "--child")
    pids = observe(client).running.pids
    assert len(pids) == 2
    events, answer = finish(client.unit_stop(client.endpoint, Limits(drain=0.0, stop=1.0, ready=0.0)))
    assert answer.killed
    assert 1.0 <= answer.seconds < 60.0, "systemd itself would wait longer"
    assert [event.stage for event in events if event.stage in ("stopping", "killing")][-1] == "killing"
    state = observe(client)
    # Practice hosts share the machine's network: what others listen to on their own addresses is seen here, too.
    here = [item for item in state.listeners if item.address == place.address]
    assert (state.running, here, state.unit.active) == (None, [], "inactive")


def test_what_cannot_refuse_new_requests_is_waited_for_but_not_for_ever(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a", "--running", "3", "--tokenizer-worker-num", "2")
    limits = Limits(drain=1.5, stop=2 * PATIENCE, ready=0.0)
    events, answer = finish(client.unit_stop(client.endpoint, limits))
    assert [event.inflight for event in events if event.stage == "draining"]
    assert (answer.inflight, answer.killed, answer.refused) == (4, False, False)
    assert answer.seconds >= 1.4


def test_stopping_what_does_not_run(place: Place) -> None:
    assert not stop(place.operator(), stop_timeout=2 * PATIENCE).killed


def test_a_service_between_two_restarts_is_stopped(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    place.run("systemctl", "kill", "--signal=KILL", UNIT)
    until(lambda: observe(client).unit.sub == "auto-restart")
    stop(client)
    time.sleep(2.5)
    assert observe(client).unit.active == "inactive"


# --- watching: proofs within a second ---------------------------------------------------------------------------


def start(
    place: Place,
    client: Connection,
    *engine: str,
    extra: str = "",
    program: str = "/usr/bin/python3",
    number: int = 1,
) -> Started:
    release = f"{number:04d}-a"
    stage(client, release)
    begin(client, None, release)
    text = unit_text(release, place, *engine, extra=extra).replace("/usr/bin/python3", program)
    return client.unit_start(SERVICE, release, text)


def lines_of(events: list[WatchEvent]) -> list[LogLine]:
    return [line for event in events if isinstance(event, LogEvent) for line in event.lines]


def test_a_fatal_line_is_proof_even_in_a_flood(place: Place) -> None:
    client = place.operator()
    started = start(place, client, "--flood", "30000", "--say", "CUDA out of memory: boom", "--delay", "600")
    events, answer = finish(client.watch(client.endpoint, started, fatal=["out of memory"]))
    assert answer.proof == "fatal-line"
    assert answer.detail["text"] == "CUDA out of memory: boom"
    lines = lines_of(events)
    assert sum(line.text.startswith("flood") for line in lines) == 30000, "no line is dropped"


@pytest.mark.alone
def test_a_fatal_line_is_proof_within_a_second(place: Place) -> None:
    client = place.operator()

    def lag(number: int) -> float:
        started = start(place, client, "--say", "fatal: no", "--delay", "600", number=number)
        events, answer = finish(client.watch(client.endpoint, started, fatal=["^never$", "^fatal:"]))
        assert (answer.proof, answer.detail["pattern"]) == ("fatal-line", "^fatal:")
        converge(client)
        return float(events[-1].t - answer.detail["t"])

    one_within(1.0, lag)


def test_pieces_of_a_progress_bar_are_lines_of_their_own(place: Place) -> None:
    client = place.operator()
    started = start(place, client, "--say", "end", "--delay", "60")
    events, _ = finish(client.watch(client.endpoint, started, fatal=["^end$"]))
    shown = [(line.text, line.piece) for line in lines_of(events) if "loading" in line.text]
    assert shown == [("loading 10%", True), ("loading 100%", False)]
    assert any(line.source == "systemd" and "Started" in line.text for line in lines_of(events))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("way", "status"),
    [("crash", 7), ("kill", 9), ("exec", 203), ("stop", None)],
    ids=str,
)
def test_a_unit_that_leaves_active_is_proof_within_a_second(place: Place, way: str, status: int | None) -> None:
    client = place.operator()
    engine = ["--crash", "0.5"] if way == "crash" else []
    program = "/usr/bin/no-such-program" if way == "exec" else "/usr/bin/python3"

    def lag(number: int) -> float:
        started = start(place, client, *engine, "--delay", "600", program=program, number=number)
        died = time.time() + 0.5
        stream = client.watch(client.endpoint, started)
        if way in ("kill", "stop"):
            time.sleep(0.5)
            died = time.time()
            place.run("systemctl", way, *(["--signal=KILL"] if way == "kill" else []), UNIT)
        events, answer = finish(stream)
        taken = time.time() - died
        assert answer.proof == "unit"
        unit = [event for event in events if isinstance(event, UnitEvent)][-1]
        if status is not None:
            assert (unit.active, unit.exec_status) == ("failed", status)
        if way == "exec":
            assert any(program in line.text for line in lines_of(events)), "the last words are there"
        converge(client)
        return taken

    one_within(2.2, lag)  # its last lines included


def test_a_restart_is_proof(place: Place) -> None:
    client = place.operator()
    started = start(place, client, "--crash", "0.3", extra="Restart=always\nRestartSec=100ms\n")
    _, answer = finish(client.watch(client.endpoint, started))
    assert answer.proof in ("unit", "restart")
    time.sleep(1.0)
    _, answer = finish(client.watch(client.endpoint, started))
    assert answer.proof in ("unit", "restart"), "and whoever comes later sees it as well"


def test_a_stranger_on_the_port_is_proof(place: Place) -> None:
    client = place.operator()
    place.run(
        "systemd-run",
        "--unit=sglang-stranger",
        "python3",
        ENGINE,
        "--address",
        place.address,
        "--port",
        str(PORT),
    )
    try:
        started = start(place, client, "--delay", "60")
        _, answer = finish(client.watch(client.endpoint, started))
    finally:
        place.run("systemctl", "stop", "sglang-stranger")
    assert answer.proof == "not-ours"
    assert answer.detail["unit"] == "sglang-stranger.service"


def test_the_processes_are_weighed_every_second(place: Place) -> None:
    client = place.operator()
    with client.watch(client.endpoint, start(place, client, "--child")) as stream:
        seen: list[ProcEvent] = []

        def enough() -> bool:
            event = stream.next(0.5)
            if isinstance(event, ProcEvent):
                seen.append(event)
            return len(seen) >= 3

        until(enough)
    assert seen[-1].extra["pids"] == 2
    assert seen[-1].rss > 1 << 20
    assert seen[-1].cpu_seconds > 0
    assert seen[-1].t - seen[0].t > 0.2 * (len(seen) - 1), "not one after the other without a pause"


def test_the_kernels_messages_are_the_kernels(place: Place) -> None:
    events, _ = finish(place.operator().journal(SERVICE, kernel=True, since=0.0))
    assert {event.source for event in events} <= {"kernel"}


def test_the_journal_of_an_earlier_start(place: Place) -> None:
    client = place.operator()
    started = go_live(place, client, "0001-a", "--say", "first")
    go_live(place, client, "0002-b", "--say", "second", before="0001-a")
    events, _ = finish(client.journal(SERVICE, invocation_id=started.invocation_id))
    texts = [event.text for event in events]
    assert "first" in texts
    assert "second" not in texts
    assert any(event.source == "systemd" for event in events)
    events, _ = finish(client.journal(SERVICE, lines=2))
    texts = [event.text for event in events]
    assert "second" in texts, "the other is systemd's, before it or after"
    assert "first" not in texts
    assert len(texts) <= 3, "one of the two may be a progress bar in two pieces"


# --- running programs -------------------------------------------------------------------------------------------


def test_run_gives_lines_status_and_errors(place: Place) -> None:
    client = place.connect()
    script = "import sys, os\nprint(sys.stdin.read())\nprint(open('in.txt').read(), os.environ['K'])\nsys.exit('bad')"
    stream = client.run(
        ["python3", "-c", script],
        stdin="one\ntwo",
        files={"in.txt": "file"},
        env={"K": "a b"},
        timeout=2 * PATIENCE,
    )
    events, answer = finish(stream)
    assert [event.line for event in events] == ["one", "two", "file a b"]
    assert (answer.status, answer.stderr.strip()) == (1, "bad")


def test_run_as_another_account(place: Place) -> None:
    client = place.connect()
    argv = ["sh", "-c", "id -un; echo $HOME; cat f; touch mine; id -Gn"]
    events, answer = finish(client.run(argv, user="operator", files={"f": "x\n"}, timeout=2 * PATIENCE))
    assert [event.line for event in events][:3] == ["operator", "/home/operator", "x"]
    assert "root" not in events[3].line
    assert answer.status == 0


def test_run_ends_at_its_time_out_and_when_cancelled(place: Place) -> None:
    client = place.connect()
    with pytest.raises(AgentError) as caught:
        finish(client.run(["sh", "-c", "sleep 987 & sleep 987"], timeout=0.5))
    assert caught.value.code == "timeout"
    with client.run(["sh", "-c", "sleep 988 & echo up; sleep 988"], timeout=2 * PATIENCE) as stream:
        assert stream.next(PATIENCE) == RunLine("up")
    until(lambda: "sleep 98" not in place.run("ps", "-eo", "args"))


def test_run_of_what_does_not_exist(place: Place) -> None:
    with pytest.raises(AgentError) as caught:
        finish(place.connect().run(["/no/such/thing"], timeout=PATIENCE))
    assert caught.value.code == "command"


# --- the guard --------------------------------------------------------------------------------------------------


def guard_active(place: Place) -> bool:
    return place.run("sh", "-c", f"systemctl is-active deployer-guard@{SERVICE} || true") == "active"


def wait_for_guard(place: Place) -> Any:
    """Until the guard has finished the transition; returns the state then."""
    client = place.connect()
    until(lambda: observe(client).transition is None)
    until(lambda: not guard_active(place))
    return observe(client)


def test_guard_removes_a_transition_that_changed_nothing(place: Place) -> None:
    client = deploying(place)
    before = observe(client)
    assert guard_active(place)
    client.close(bye=False)
    state = wait_for_guard(place)
    assert state.unit.invocation_id == before.unit.invocation_id
    assert state.release("0002-b").state == "abandoned"
    assert [line["op"] for line in audit(place)][-1] == "guard.forget"


def test_guard_restores_at_once_when_nothing_runs(place: Place) -> None:
    client = deploying(place)
    stop(client)
    client.close(bye=False)
    state = wait_for_guard(place)
    assert state.running.release == "0001-a"


def test_guard_restores_at_once_when_the_candidate_failed(place: Place) -> None:
    client = deploying(place)
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place, "--crash", "0.2"))
    client.close(bye=False)
    state = wait_for_guard(place)
    assert (state.running.release, state.candidate) == ("0001-a", None)


def test_guard_restores_at_once_when_the_candidate_was_restarted(place: Place) -> None:
    client = deploying(place)
    stop(client)
    text = unit_text("0002-b", place, "--crash", "1", extra="Restart=always\nRestartSec=100ms\n")
    client.unit_start(SERVICE, "0002-b", text)
    client.close(bye=False)
    state = wait_for_guard(place)
    assert (state.running.release, state.candidate) == ("0001-a", None)


def test_guard_waits_out_the_grace_for_a_healthy_candidate(place: Place) -> None:
    client = deploying(place, grace=5.0)
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    left = time.monotonic()
    client.close(bye=False)
    watcher = place.connect()
    while (state := observe(watcher)) and time.monotonic() - left < 5.0:
        assert state.running.release == "0002-b"
        time.sleep(0.5)
    state = wait_for_guard(place)
    assert state.running.release == "0001-a"


def test_an_operator_who_comes_back_within_the_grace_goes_on(place: Place) -> None:
    client = deploying(place, grace=8.0)
    stop(client)
    started = client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    again = place.connect()
    client.close(bye=False)

    def abandoned() -> bool:
        lease = again.observe({SERVICE: PORT}).lease
        return lease is not None and lease.state == "abandoned"

    until(abandoned)
    acquire(again, command="resume")
    time.sleep(9.0)
    state = observe(again)
    assert (state.running.release, state.transition.to) == ("0002-b", "0002-b")
    text = unit_text("0002-b", place, candidate=False)
    again.promote(SERVICE, "0002-b", text, expect_live="0001-a", expect_invocation=started.invocation_id)
    assert converge(again).serving
    assert observe(again).unit.invocation_id == started.invocation_id


def test_guard_completes_a_promotion_without_a_restart(place: Place) -> None:
    client = deploying(place)
    stop(client)
    started = client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    text = unit_text("0002-b", place, candidate=False)
    client.promote(SERVICE, "0002-b", text, expect_live="0001-a", expect_invocation=started.invocation_id)
    client.close(bye=False)
    state = wait_for_guard(place)
    assert (state.live.release, state.running.release, state.candidate) == ("0002-b", "0002-b", None)
    assert state.unit.invocation_id == started.invocation_id
    assert state.unit.fragment == LIVE
    assert state.release("0002-b").was_live


def test_guard_takes_over_from_an_operator_who_fell_asleep(place: Place) -> None:
    client = deploying(place)
    stop(client)
    acquire(client, ttl=1.0)  # and from here on no heartbeat
    state = wait_for_guard(place)
    assert state.running.release == "0001-a"
    with pytest.raises(LeaseLost):
        client.transition_step(SERVICE, Step.SWITCH)
    with pytest.raises(LeaseLost):
        client.lease_renew()


def test_guard_of_a_first_deployment_leaves_nothing_running(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a", grace=0.5)
    client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    client.close(bye=False)
    state = wait_for_guard(place)
    assert (state.running, state.candidate, state.live) == (None, None, None)


def test_guard_survives_being_killed_and_a_daemon_reload(place: Place) -> None:
    client = deploying(place, grace=6.0)
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    guard = f"deployer-guard@{SERVICE}.service"
    place.run("systemctl", "kill", "--signal=KILL", guard)
    place.run("systemctl", "daemon-reload")
    until(lambda: guard_active(place))
    client.close(bye=False)
    assert wait_for_guard(place).running.release == "0001-a"


def test_guard_acts_when_the_operators_agent_is_killed(place: Place) -> None:
    """kill -9 of everything of the operator's on the host: no end of file is handled there, the lease runs out."""
    client = deploying(place)
    acquire(client, ttl=2.0)
    stop(client)
    place.run("pkill", "-KILL", "-f", "[d]eployer-agent")
    state = wait_for_guard(place)
    assert state.running.release == "0001-a"


def test_a_guard_at_work_is_named_to_whoever_asks(place: Place) -> None:
    client = deploying(place)
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place, "--ignore-term", "--crash", "1", "--child"))
    client.close(bye=False)
    other = place.connect()

    def held() -> bool:
        try:
            acquire(other)
        except LeaseHeld as error:
            return "guard" in error.message
        other.lease_release()
        return False

    until(held)
    wait_for_guard(place)


# --- power cuts -------------------------------------------------------------------------------------------------


def restarted(place: Place) -> Any:
    """Cut the host's power, boot it again, connect."""
    assert place.rehearsal is not None
    place.close()
    place.clients.clear()
    place.rehearsal = hosts.powercut(place.rehearsal)
    return place.connect()


def test_a_power_cut_in_mid_deployment_boots_the_live_release(place: Place) -> None:
    client = deploying(place)
    programs: dict[str, tuple[str, ...]] = {"after_restore": ("/usr/bin/tee", "/run/told")}
    client.hooks_set(SERVICE, HostHooks("gpu1", programs, 30.0, None, None))
    stop(client)
    client.unit_start(SERVICE, "0002-b", unit_text("0002-b", place))
    client = restarted(place)
    state = until(lambda: found if (found := observe(client)).transition is None else None)
    state = until(lambda: found if (found := observe(client)).running else None)
    assert (state.running.release, state.candidate, state.live.release) == ("0001-a", None, "0001-a")
    assert state.release("0002-b").state == "abandoned"
    assert "recover.converge" in [line["op"] for line in audit(place)]
    assert not client.observe({SERVICE: PORT}).lease.valid
    until(lambda: "notify" in [line["op"] for line in audit(place)])
    facts = json.loads(place.run("cat", "/run/told"))
    assert (facts["by"], facts["release"], facts["serving"]) == ("recover@gpu1", "0001-a", None)


def test_an_assessment_tells_a_stop_from_an_end(place: Place) -> None:
    client, report = place.operator(), f"/var/lib/deployer/{SERVICE}/boot.json"
    go_live(place, client, "0001-a")
    client.release_update(SERVICE, "0001-a", patch={"argv": ["engine", "--port", str(PORT)]})
    client.lease_release()

    def assessed() -> str:
        until(lambda: not observe(client).running)
        place.run("rm", "-f", report)
        place.run("sh", "-c", f"/usr/bin/python3 /var/lib/deployer/agent-*.py assess {SERVICE}")
        return str(json.loads(place.run("cat", report))["text"])

    place.run("systemctl", "kill", UNIT)
    assert "its unit is inactive" in assessed()
    place.run("systemctl", "start", UNIT)
    place.run("systemctl", "stop", UNIT)
    assert assessed() == "it was stopped: left alone"


def test_a_recovery_that_is_killed_begins_again(place: Place) -> None:
    client = deploying(place)
    stop(client)
    place.run("systemctl", "stop", f"deployer-guard@{SERVICE}")
    client.close(bye=False)
    path, recovery = f"/var/lib/deployer/{SERVICE}/transition.json", f"deployer-recover@{SERVICE}"
    place.run("sed", "-i", 's/"boot_id": "[^"]*"/"boot_id": "another"/', path)
    # Somebody holds the host's lock, so that it does not get far.
    place.run("systemd-run", "--unit=deployer-locking", "flock", "/var/lib/deployer/lock", "sleep", "600")
    until(lambda: "BUSY" in place.run("sh", "-c", "flock -n /var/lib/deployer/lock true || echo BUSY"))
    place.run("systemctl", "start", "--no-block", recovery)

    def started(before: str = "0") -> str:
        pid = place.run("systemctl", "show", "-P", "ExecMainPID", recovery).strip()
        return "" if pid in ("0", before) else pid

    pid = until(started)
    place.run("systemctl", "kill", "-s", "KILL", recovery)
    until(lambda: started(pid))
    place.run("systemctl", "stop", "deployer-locking")
    client = place.connect()
    until(lambda: observe(client).transition is None)
    assert [line["op"] for line in audit(place)][-1] == "recover.converge"


def test_a_power_cut_brings_the_service_back_that_had_made_room(place: Place) -> None:
    client, other = place.operator(), make_other_live(place)
    take_its_place(place, client, other, "0001-a")
    client = restarted(place)
    until(lambda: other_service(client) == ("0001-m", True))
    state = until(lambda: found if (found := observe(client)).transition is None else None)
    assert (state.running, state.candidate, state.enabled) == (None, None, False)


def test_a_power_cut_right_after_the_first_promotion_boots_the_new_release(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    begin(client, None, "0001-a")
    started = client.unit_start(SERVICE, "0001-a", unit_text("0001-a", place))
    text = unit_text("0001-a", place, candidate=False)
    client.promote(SERVICE, "0001-a", text, expect_live=None, expect_invocation=started.invocation_id)
    client = restarted(place)
    state = until(lambda: found if (found := observe(client)).running else None)
    assert (state.running.release, state.live.release, state.enabled) == ("0001-a", "0001-a", True)
    assert until(lambda: observe(client).transition is None)


# --- the record -------------------------------------------------------------------------------------------------


def test_every_change_leaves_a_line(place: Place) -> None:
    client = place.operator()
    go_live(place, client, "0001-a")
    with pytest.raises(AgentError):
        stage(client, "0001-a")
    lines = audit(place)
    assert [(line["op"], line["result"]) for line in lines if line["op"] != "lease.acquire"] == [
        ("stage", "ok"),
        ("transition.begin", "ok"),
        ("unit.stop", "begun"),
        ("unit.stop", "ok"),
        ("unit.start", "ok"),
        ("promote", "ok"),
        ("converge", "begun"),
        ("converge", "ok"),
        ("stage", "exists"),
    ]
    assert all(line["owner"]["user"] == "ann" and line["generation"] == 1 and line["t"] for line in lines)
    assert "ExecStart" not in json.dumps(lines), "texts are not copied into it"


@pytest.mark.parametrize("bye", [True, False], ids=["goes", "breaks off"])
def test_a_program_of_an_operator_who_leaves_ends_and_leaves_nothing(place: Place, bye: bool) -> None:
    client = place.connect()
    files = {f"part-{number}": "x" for number in range(3000)}  # so many that removing them takes a while
    stream = client.host.stream("run", {"argv": ["sh", "-c", "echo begun; sleep 77"], "files": files})
    event = stream.next(timeout=PATIENCE)
    assert event == {"line": "begun"}
    assert place.run("sh", "-c", "ls -d /tmp/deployer-run-*")
    client.close(bye=bye)
    until(lambda: not place.run("sh", "-c", "ls -d /tmp/deployer-run-* 2>/dev/null; pgrep -f 'sleep 77$' || true"))


def test_state_of_a_newer_deployer_is_refused(place: Place) -> None:
    client = place.operator()
    stage(client, "0001-a")
    place.write(f"/var/lib/deployer/{SERVICE}/transition.json", '{"schema": 2, "to": "x"}')
    with pytest.raises(AgentError) as caught:
        observe(client)
    assert caught.value.code == "schema"


def test_facts_of_engine_and_model(place: Place) -> None:
    place.write("/tmp/model/config.json", '{"architectures": ["X"]}')
    place.write("/tmp/model/w.safetensors", "x" * 1000)
    client = place.connect()
    state = client.observe({}, engine="/opt/sglang/bin/python", model="/tmp/model", gpus=True)
    assert state.engine is not None
    assert state.engine.sglang
    assert state.model is not None
    assert (state.model.exists, state.model.files, state.model.config) == (True, 2, {"architectures": ["X"]})
    assert state.model.bytes == 1000 + len('{"architectures": ["X"]}')
    assert state.gpus is not None
    place.write("/tmp/model/config.json", '{"architectures": ["Y"]}')
    again = client.observe({}, model="/tmp/model").model
    assert again is not None
    assert again.fingerprint != state.model.fingerprint
    missing = client.observe({}, engine="/no/python").engine
    assert missing is not None
    assert not missing.exists
