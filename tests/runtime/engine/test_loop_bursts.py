"""Many requests at once: the busy loop takes them from its inbox a few at a time."""

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from kvasir.engine import loop
from kvasir.engine.engine_collector import EngineCollector
from kvasir.link.protocol import Abort
from runtime.engine.core_harness import add_request
from runtime.engine.looped_engine import PROMPT, WAIT, Engine, held_step


def test_a_burst_is_taken_a_bounded_slice_at_a_time(engine: Engine) -> None:
    """4,096 requests at once: each turn takes MAX_REQUESTS_TAKEN before its step and as many behind it."""
    count = 4096
    begun, go_on = held_step(engine)
    engine.tell(add_request("running", PROMPT, 60))
    assert begun.wait(WAIT)
    for number in range(count):
        engine.tell(add_request(f"burst-{number}", PROMPT, 1))
    waiting = [0]
    engine.harness.executor.before_step = lambda: waiting.append(len(engine.harness.scheduler.waiting))
    go_on.set()
    while waiting[-1] == max(waiting):
        engine.outputs()
    assert max(waiting) > 0.9 * count
    assert max(after - before for before, after in pairwise(waiting)) <= 2 * loop.MAX_REQUESTS_TAKEN
    engine.tell(Abort([f"burst-{number}" for number in range(count)]))


def test_an_urgent_request_is_admitted_in_the_step_after_a_burst(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool, max_num_seqs=2, by_priority=True)
    begun, go_on = held_step(engine)
    engine.tell(add_request("running", PROMPT, 60))
    assert begun.wait(WAIT)
    names = [f"burst-{number}" for number in range(2000)]
    for name in names:
        engine.tell(add_request(name, PROMPT, 1, priority=5))
    engine.tell(add_request("urgent", PROMPT, 1, priority=-1))
    go_on.set()
    engine.answer("urgent")
    engine.tell(Abort(["running", *names]))
    engine.loop.drain()
    engine.ended.result(WAIT)
    _, second, *_ = engine.harness.executor.steps
    assert [new.request_id for new in second.new] == ["urgent"]


def test_requests_in_the_inbox_count_as_waiting(pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    """Router, metrics and log must show a burst at once, and not as slowly as the loop takes its requests."""
    count = 2000
    engine = Engine(pool, max_num_seqs=1)
    collector = EngineCollector(engine.status, "demo")
    collector.core = engine.harness.core
    begun, go_on = held_step(engine)
    engine.tell(add_request("running", PROMPT, 1))
    assert begun.wait(WAIT)
    names = [f"burst-{number}" for number in range(count)]
    for name in names:
        engine.tell(add_request(name, PROMPT, 1))
    [waiting] = [metric for metric in collector.collect() if metric.name == "vllm:num_requests_waiting"]
    assert [sample.value for sample in waiting.samples] == [count]
    second_begun, finish = held_step(engine)
    with caplog.at_level(logging.INFO):
        engine.loop.drain()
        go_on.set()
        assert second_begun.wait(WAIT)
    assert engine.outputs()[1].stats.waiting == count
    assert f"draining: 1 running and {count} waiting requests" in caplog.text
    stats, _ = engine.link.loads[-1]
    assert (stats.running, stats.waiting) == (0, count)
    assert engine.status.report().live_requests == count
    engine.tell(Abort(names))
    finish.set()
    engine.ended.result(WAIT)
