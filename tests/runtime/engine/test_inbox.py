"""Between the link's thread and the loop: the effect is that of one queue."""

import math
import threading

import pytest

from kvasir.engine.inbox import Event, ExecutorFailed, Inbox
from kvasir.engine.ingest import Ingest, RefusedRequest
from kvasir.engine.scheduling.token_budget import REQUEST_TOKENS, TokenBudget
from kvasir.link.engine_end.engine_link import DrainSettled, FrontendLost, Received
from kvasir.link.protocol import Abort, AddRequest, Call
from runtime.engine.core_harness import FRONTEND, add_request
from runtime.engine.fake_executor import VOCAB_SIZE

PROMPT = [5, 6, 7]
COST = len(PROMPT) + REQUEST_TOKENS


class Box:
    def __init__(self, limit: int = 2**26) -> None:
        self.budget = TokenBudget(limit)
        self.inbox = Inbox()
        self.inbox.open(Ingest(VOCAB_SIZE, 100, 4, self.budget))

    def put(self, message: AddRequest | Abort | Call, frontend: str = FRONTEND) -> None:
        self.inbox.put(Received(frontend, message))
        self.inbox.flush()

    def take(self, most: int | None = None) -> tuple[list[Event], list[tuple[str, int]]]:
        taken = self.inbox.take(most)
        return taken.events, [(request.request_id, request.attempt) for request in taken.requests]


@pytest.fixture
def box() -> Box:
    return Box()


def test_requests_are_taken_in_their_order_a_few_at_a_time(box: Box) -> None:
    for name in "abcde":
        box.put(add_request(name, PROMPT))
    assert box.take(2) == ([], [("a", 0), ("b", 0)])
    assert not box.inbox.empty
    assert box.take(2) == ([], [("c", 0), ("d", 0)])
    assert box.take(2) == ([], [("e", 0)])
    assert box.inbox.empty
    assert box.budget.held == 5 * COST  # the scheduler releases them


def test_the_most_urgent_requests_are_taken_first(box: Box) -> None:
    for name, priority in (("a", 5), ("b", 0), ("c", 5), ("d", -1), ("e", 0)):
        box.put(add_request(name, PROMPT, priority=priority))
    assert box.take(2) == ([], [("d", 0), ("b", 0)])
    box.put(add_request("f", PROMPT, priority=-1))
    box.put(Abort(["a"]))
    assert box.take(2)[1] == [("f", 0), ("e", 0)]
    assert box.take(2) == ([], [("c", 0)])
    assert box.inbox.empty


def test_requests_of_other_engines_are_taken_before_fresh_ones(box: Box) -> None:
    for name, priority, age in (("a", 0, 0.0), ("young", 0, 5.0), ("old", 0, 60.0), ("idle", 5, 99.0)):
        box.put(add_request(name, PROMPT, priority=priority, age=age))
    box.put(add_request("nan", PROMPT, age=math.nan))
    assert [name for name, _ in box.take()[1]] == ["old", "young", "a", "nan", "idle"]


def test_all_events_are_taken_at_once_before_requests(box: Box) -> None:
    for name in "abc":
        box.put(add_request(name, PROMPT))
        box.put(Call(1, name))
    box.inbox.put(DrainSettled())
    box.inbox.flush()
    events, requests = box.take(1)
    assert [type(event) for event in events] == [Received, Received, Received, DrainSettled]
    assert requests == [("a", 0)]


def test_an_aborted_request_never_reaches_the_loop(box: Box) -> None:
    box.put(add_request("a", PROMPT))
    box.put(add_request("b", PROMPT))
    box.put(Abort(["a", "unknown"]))
    events, requests = box.take()
    assert events == [Received(FRONTEND, Abort(["a", "unknown"]))]  # the loop may have an earlier attempt
    assert requests == [("b", 0)]
    assert box.budget.held == COST


def test_an_abort_does_not_reach_the_request_that_comes_after_it(box: Box) -> None:
    box.put(add_request("a", PROMPT))
    box.put(Abort(["a"]))
    box.put(add_request("a", PROMPT, attempt=1))
    assert box.take()[1] == [("a", 1)]


def test_an_abort_spares_another_frontends_request_of_its_id(box: Box) -> None:
    box.put(add_request("a", PROMPT))
    box.put(add_request("a", PROMPT), "frontend-b")
    box.put(Abort(["a"]), "frontend-b")
    [request] = box.inbox.take(None).requests
    assert request.frontend == FRONTEND


def test_requests_of_a_lost_frontend_are_withdrawn(box: Box) -> None:
    box.put(add_request("a", PROMPT), "frontend-b")
    box.put(add_request("b", PROMPT))
    box.inbox.put(FrontendLost("frontend-b"))
    box.inbox.flush()
    box.put(add_request("c", PROMPT), "frontend-b")  # it is there again
    assert box.take() == ([FrontendLost("frontend-b")], [("b", 0), ("c", 0)])
    assert box.budget.held == 2 * COST


def test_only_a_later_attempt_replaces_another_one(box: Box) -> None:
    for attempt in (1, 2, 1, 2):
        box.put(add_request("a", PROMPT, attempt=attempt))
    assert box.take() == ([], [("a", 2)])
    assert box.budget.held == COST


def test_a_refusal_is_an_event_and_holds_nothing() -> None:
    box = Box(COST)
    box.put(add_request("a", PROMPT))
    box.put(add_request("b", PROMPT))
    [refusal], requests = box.take()
    assert isinstance(refusal, RefusedRequest)
    assert (refusal.frontend, refusal.output.request_id) == (FRONTEND, "b")
    assert requests == [("a", 0)]
    assert box.budget.held == COST


def test_a_refused_attempt_withdraws_an_earlier_one() -> None:
    box = Box(COST)
    box.put(add_request("a", PROMPT, attempt=1))
    box.put(add_request("a", PROMPT, attempt=2))
    [refusal], requests = box.take()
    assert isinstance(refusal, RefusedRequest)
    assert refusal.output.attempt == 2
    assert requests == []
    assert box.budget.held == 0


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("limit", [COST, 10 * COST], ids=["refused", "accepted"])
def test_a_repeated_attempt_is_dropped_without_an_answer(attempt: int, limit: int) -> None:
    box = Box(limit)
    box.put(add_request("a", PROMPT, attempt=1))
    box.put(add_request("a", PROMPT, attempt=attempt))
    assert box.take() == ([], [("a", 1)])
    assert box.budget.held == COST


def test_waiting_ends_with_a_message_or_a_wake_up_or_the_time(box: Box) -> None:
    box.inbox.wait(0.01)
    box.inbox.wake()
    box.inbox.wait(None)
    timer = threading.Timer(0.05, box.put, [add_request("a", PROMPT)])
    timer.start()
    box.inbox.wait(None)
    assert box.take() == ([], [("a", 0)])
    timer.join()
    box.put(Call(1, "x"))
    box.take()
    box.put(Call(2, "x"))
    box.inbox.wait(None)


def test_a_request_before_the_engine_is_ready_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="before the engine was ready"):
        Inbox().put(Received(FRONTEND, add_request("a", PROMPT)))


def test_nothing_is_lost_between_two_threads(box: Box) -> None:
    count = 2000
    taken: list[str] = []

    def send() -> None:
        for number in range(count):
            box.put(add_request(str(number), PROMPT))

    sender = threading.Thread(target=send)
    sender.start()
    while len(taken) < count:
        box.inbox.wait(60)
        taken += [name for name, _ in box.take(7)[1]]
    sender.join()
    assert taken == [str(number) for number in range(count)]


def test_the_loop_is_woken_once_for_a_burst_of_requests(box: Box) -> None:
    """Woken by the first one, it would compute a step for that one alone."""
    waiting = threading.Thread(target=box.inbox.wait, args=(None,))
    waiting.start()
    for name in ("a", "b"):
        box.inbox.put(Received(FRONTEND, add_request(name, PROMPT)))
        waiting.join(0.05)
        assert waiting.is_alive()
    box.inbox.flush()
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(box.take()[1]) == 2


def test_a_failure_of_the_executor_wakes_a_waiting_loop() -> None:
    box, error = Box(), RuntimeError("worker 0 has ended")
    woken = threading.Event()

    def wait() -> None:
        box.inbox.wait(None)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    box.inbox.fail(error)
    assert woken.wait(60)
    assert box.take()[0] == [ExecutorFailed(error)]
