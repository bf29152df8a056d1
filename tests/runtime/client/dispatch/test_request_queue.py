"""The order in which waiting requests are sent: a model that sorts all of them, fairness, and the cost."""

import random
import time
from dataclasses import dataclass, field

from kvasir.client.dispatch.request_queue import MAX_CLIENTS, MIN_KEPT, REQUEST_TOKENS, RequestQueue, lane_of
from kvasir.client.request_observer import Trace


@dataclass
class Waiting:
    request_id: str
    client: str = ""
    priority: int = 0
    attempt: int = 0
    num_tokens: int = 100
    data_parallel_rank: int | None = None
    adapter_digest: str = ""
    refused_by: tuple[str, ...] = ()
    trace: Trace = field(default_factory=Trace)


def queue_of(*requests: Waiting) -> RequestQueue[Waiting]:
    queue: RequestQueue[Waiting] = RequestQueue()
    for request in requests:
        queue.add(request)
    return queue


def drained(queue: RequestQueue[Waiting]) -> list[str]:
    """Send all; return the ids in their order."""
    order = []
    while (request := queue.first()) is not None:
        order.append(request.request_id)
        queue.sent(request)
    assert not queue.lanes
    return order


def test_priority_goes_before_earlier_attempts_and_arrival() -> None:
    requests = [
        Waiting("late", priority=3),
        Waiting("fresh"),
        Waiting("second"),
        Waiting("moved", attempt=1),
        Waiting("urgent", priority=-1),
    ]
    assert drained(queue_of(*requests)) == ["urgent", "moved", "fresh", "second", "late"]


def test_moved_requests_keep_their_age_among_all_clients() -> None:
    old, young = Waiting("old", "b", attempt=1), Waiting("young", "a", attempt=2)
    queue = queue_of(young, Waiting("fresh", "a"), old)
    assert drained(queue) == ["old", "young", "fresh"]


def test_request_does_not_wait_behind_another_clients_thousand() -> None:
    queue = queue_of(*(Waiting(f"a{n}", "a") for n in range(1000)))
    for _ in range(3):
        first = queue.first()
        assert first is not None
        queue.sent(first)
    queue.add(Waiting("b", "b"))
    assert "b" in drained(queue)[:2]


def test_clients_get_equal_tokens_not_equal_requests() -> None:
    long = [Waiting(f"a{n}", "a", num_tokens=1000 - REQUEST_TOKENS) for n in range(20)]
    short = [Waiting(f"b{n}", "b", num_tokens=100 - REQUEST_TOKENS) for n in range(200)]
    first = drained(queue_of(*long, *short))[:110]
    assert sum(name.startswith("a") for name in first) in (10, 11)


def test_the_output_of_earlier_requests_counts() -> None:
    queue = queue_of(*(Waiting(f"{client}{n}", client) for n in range(3) for client in "ab"))
    first = queue.first()
    assert first is not None
    queue.sent(first)
    queue.charge(first, 1000)
    assert drained(queue) == ["b0", "b1", "b2", "a1", "a2"]


def test_a_client_that_was_idle_has_saved_nothing() -> None:
    queue = queue_of(*(Waiting(f"a{n}", "a") for n in range(50)))
    for _ in range(20):
        first = queue.first()
        assert first is not None
        queue.sent(first)
    for n in range(30):
        queue.add(Waiting(f"b{n}", "b"))
    assert sum(name.startswith("b") for name in drained(queue)[:20]) in range(9, 12)


def test_leaving_and_coming_back_gains_nothing() -> None:
    queue = queue_of(*(Waiting(f"a{n}", "a") for n in range(10)), Waiting("b0", "b"))
    sent = queue.first()
    assert sent is not None
    queue.sent(sent)
    for request in [each for each in queue if each.client == "a"]:
        queue.remove(request)
    queue.add(Waiting("again", "a"))
    assert drained(queue) == ["b0", "again"]


def test_lanes_share_the_order_and_do_not_delay_each_other() -> None:
    queue = queue_of(
        *(Waiting(f"a{n}", "a", data_parallel_rank=1) for n in range(3)),
        Waiting("b", "b"),
        Waiting("c", "b", refused_by=("engine",)),
    )
    first = queue.first()
    assert first is not None
    assert first.request_id == "a0"
    other = queue.first(skip=[lane_of(first)])
    assert other is not None
    assert other.request_id == "b"
    assert drained(queue) == ["a0", "b", "a1", "c", "a2"]


def test_random_operations_agree_with_a_list_sorted_each_time() -> None:
    """Without charges the order is that of the requests; with them, each client's own order holds."""
    rng = random.Random(1)
    queue: RequestQueue[Waiting] = RequestQueue()
    model: dict[str, Waiting] = {}
    for number in range(5000):
        match rng.choice(("add", "add", "remove", "sent", "first")):
            case "add" if len(model) < 200:
                request = Waiting(
                    f"r{number}",
                    rng.choice("abcde"),
                    rng.choice((0, 0, 0, -1, 5)),
                    rng.choice((0, 0, 0, 1)),
                    rng.randrange(1, 500),
                    rng.choice((None, None, 0, 1)),
                )
                model[request.request_id] = request
                queue.add(request)
            case "remove" if model:
                request = model.pop(rng.choice(list(model)))
                assert queue.remove(request)
                assert not queue.remove(request)
            case "sent" if model:
                sent = queue.first()
                assert sent is not None
                best = min((each.priority, not each.attempt) for each in model.values())
                assert (sent.priority, not sent.attempt) == best
                older = [each for each in model.values() if each.trace.started < sent.trace.started]
                same = [each for each in older if (each.priority, not each.attempt) == best]
                if sent.attempt:
                    assert not same
                else:
                    own = [each for each in same if each.client == sent.client]
                    assert not [each for each in own if lane_of(each) == lane_of(sent)]
                queue.sent(sent)
                del model[sent.request_id]
            case _:
                for lane in queue.lanes:
                    head = queue.first(skip=[each for each in queue.lanes if each != lane])
                    assert head is not None
                    assert lane_of(head) == lane
        assert len(queue) == len(model)
        assert {each.request_id for each in queue} == set(model)
        assert set(queue.lanes) == {lane_of(each) for each in model.values()}


def test_nothing_is_left_of_clients_that_came_and_went() -> None:
    queue = queue_of(Waiting("stays", "z", data_parallel_rank=1))
    for number in range(2 * MAX_CLIENTS + 100):
        request = Waiting(f"r{number}", f"client {number}", data_parallel_rank=1)
        queue.add(request)
        queue.remove(request) if number % 9 == 0 else queue.sent(request)
    (lane,) = queue._lanes.values()
    (usage,) = queue._usages.values()
    assert len(lane._heap) <= 2 * MIN_KEPT
    assert len(usage.used) <= MAX_CLIENTS


def cost_of(clients: int, count: int) -> float:
    """CPU seconds of one request's way through a queue of so many."""
    requests = [Waiting(f"r{n}", f"c{n % clients}") for n in range(count)]
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        queue = queue_of(*requests)
        for request in requests[::3]:
            queue.remove(request)
        drained(queue)
        best = min(best, (time.process_time() - began) / count)
    return best


def test_the_cost_does_not_grow_with_the_number_of_requests() -> None:
    for clients in (1, 40, 4096):
        small, large = cost_of(min(clients, 128), 128), cost_of(clients, 4096)
        print(f"{clients} clients: {small * 1e6:.1f} and {large * 1e6:.1f} µs for each of 128 and 4096 requests")
        assert large < 5 * small + 20e-6
