"""Many requests at once: the busy loop takes them from its inbox a few at a time."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from kvasir.engine import loop
from kvasir.link.protocol import Abort
from runtime.engine.fakes import add_request
from runtime.engine.looped_engine import PROMPT, WAIT, Engine, held_step


def test_a_burst_is_taken_a_bounded_slice_at_a_time(engine: Engine) -> None:
    """4,096 requests at once: each turn takes MOST_REQUESTS before its step and as many behind it."""
    count = 4096
    begun, go_on = held_step(engine)
    engine.tell(add_request("running", PROMPT, 60))
    assert begun.wait(WAIT)
    for number in range(count):
        engine.tell(add_request(f"burst-{number}", PROMPT, 1))
    go_on.set()
    waiting = [0]
    while waiting[-1] == max(waiting):
        waiting.append(engine.outputs()[1].stats.waiting)
    assert max(waiting) > 0.9 * count
    assert max(after - before for before, after in pairwise(waiting)) <= 2 * loop.MOST_REQUESTS
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
