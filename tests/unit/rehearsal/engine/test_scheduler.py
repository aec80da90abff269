"""Slots, caps and queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployer_rehearsal.engine.sglang.scheduler import DecodeDone, Event, PrefillDone, Request, Scheduler
from deployer_rehearsal.engine.sglang.speeds import Speeds


class Driver:
    """A scheduler on a virtual clock, with everything that it reports."""

    def __init__(self, speeds: Speeds, max_running: int = 64) -> None:
        self.events: list[tuple[float, Event]] = []
        self.received: dict[int, list[int]] = {}
        self.clock = 0.0
        self.most_running = 0
        self.scheduler = Scheduler(speeds, max_running, lambda now, event: self.events.append((now, event)))

    def submit(self, name: int, tokens: int, prompt: int = 10) -> Request:
        def on_token(request: Request, index: int) -> None:
            self.received.setdefault(name, []).append(index)

        request = Request(prompt, tokens, on_token)
        self.scheduler.submit(request, self.clock)
        return request

    def run(self, until: float = float("inf")) -> None:
        while (due := self.scheduler.next_time()) is not None and due <= until:
            self.clock = max(self.clock, due)
            self.scheduler.advance(due)
            self.most_running = max(self.most_running, self.scheduler.running)
        self.clock = max(self.clock, until) if until != float("inf") else self.clock

    def decodes(self) -> list[DecodeDone]:
        return [event for _, event in self.events if isinstance(event, DecodeDone)]

    def prefills(self) -> list[PrefillDone]:
        return [event for _, event in self.events if isinstance(event, PrefillDone)]


def test_a_first_request_takes_a_slot_alone_and_the_herd_the_next() -> None:
    driver = Driver(Speeds(pp=2, cap=32))
    driver.submit(0, 20)
    driver.run(until=0.001)
    for name in range(1, 28):
        driver.submit(name, 20)
    driver.run()
    assert [event.new_requests for event in driver.prefills()] == [1, 27]
    assert {event.batch for event in driver.decodes()} == {1, 27}


def test_what_finds_no_place_waits() -> None:
    driver = Driver(Speeds(pp=2, cap=2), max_running=64)
    for name in range(6):
        driver.submit(name, 5)
    driver.run(until=0.001)
    assert driver.scheduler.running == 2
    driver.run(until=0.1)
    assert driver.scheduler.running == 4
    assert len(driver.scheduler.queue) == 2
    driver.run()
    assert all(driver.received[name] == [0, 1, 2, 3, 4] for name in range(6))
    assert max(event.queued for event in driver.decodes()) == 2


def test_the_cap_can_change_while_serving() -> None:
    driver = Driver(Speeds(pp=2, cap=1))
    for name in range(4):
        driver.submit(name, 50)
    driver.run(until=0.5)
    assert driver.scheduler.running == 2
    driver.scheduler.cap = 2
    driver.run(until=1.0)
    assert driver.scheduler.running == 4


def test_hung_means_silence() -> None:
    driver = Driver(Speeds(tp=8))
    driver.submit(0, 100)
    driver.run(until=1.0)
    before = len(driver.received[0])
    driver.scheduler.hung = True
    driver.run(until=60.0)
    assert len(driver.received[0]) == before > 0
    driver.scheduler.hung = False
    driver.run()
    assert len(driver.received[0]) == 100


def test_an_aborted_request_leaves_its_place() -> None:
    driver = Driver(Speeds(tp=8))
    request = driver.submit(0, 1000)
    driver.run(until=0.5)
    request.aborted = True
    driver.run(until=1.0)
    assert driver.scheduler.in_flight == 0


def test_one_slot_only_without_a_pipeline() -> None:
    driver = Driver(Speeds(tp=8, depth=4, cap=64))
    assert len(driver.scheduler.slots) == 1


@given(
    pp=st.integers(1, 4),
    depth=st.integers(0, 4),
    cap=st.integers(1, 9),
    max_running=st.integers(1, 20),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    gaps=st.lists(st.floats(0, 0.2), min_size=30, max_size=30),
)
def test_every_request_gets_its_tokens_within_the_limits(
    pp: int, depth: int, cap: int, max_running: int, lengths: list[int], gaps: list[float]
) -> None:
    driver = Driver(Speeds(pp=pp, depth=depth, cap=cap), max_running)
    for name, (length, gap) in enumerate(zip(lengths, gaps, strict=False)):
        driver.run(until=driver.clock + gap)
        driver.submit(name, length)
    driver.run()
    assert driver.received == {name: list(range(length)) for name, length in enumerate(lengths)}
    assert driver.most_running <= min(max_running, cap * driver.scheduler.speeds.slots)
    assert all(event.batch <= cap for event in driver.decodes())
    assert driver.scheduler.in_flight == 0
    times = [now for now, _ in driver.events]
    assert times == sorted(times)
