import asyncio
import random
from typing import Any

import pytest

from kvasir.client.input.prompted import Prompted
from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState
from kvasir.client.request_errors import InvalidRequest, TooManyRequests
from kvasir.config.frontend_settings import ServerConfig
from kvasir.link.protocol import AddRequest
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import packed, token_array

PARAMS = SamplingParams(max_tokens=8, seed=0)


class NoText:
    def push(self, token_ids: object) -> str:
        return ""

    def finish(self) -> str:
        return ""


def request(request_id: str) -> LiveRequest:
    return LiveRequest(request_id, Prompted(token_array([5, 6, 7]), RequestCore(PARAMS)), NoText())


def request_of(request_id: str, tokens: int) -> LiveRequest:
    """Return a request with a prompt of this length that takes no memory."""
    prompt: Any = range(tokens)
    return LiveRequest(request_id, Prompted(prompt, RequestCore(PARAMS)), NoText())


def test_more_requests_than_the_limit_are_refused_until_one_ends() -> None:
    journal = Journal(2)
    first = request("1")
    journal.add(first)
    journal.add(request("2"))
    with pytest.raises(TooManyRequests, match="2 requests are in flight") as caught:
        journal.add(request("3"))
    assert caught.value.retry_after > 0
    journal.remove(first)
    journal.add(request("3"))


def test_the_default_limit_is_64_mi_tokens() -> None:
    assert ServerConfig().max_live_tokens == 2**26


def test_more_tokens_than_the_limit_are_refused_until_one_ends() -> None:
    limit = ServerConfig().max_live_tokens
    journal = Journal(10, limit)
    long = request_of("long", limit - 3)
    journal.add(long)
    journal.add(request_of("fits", 3))
    assert journal.num_tokens == limit
    with pytest.raises(TooManyRequests, match=f"have {limit} tokens.*--max-live-tokens") as caught:
        journal.add(request_of("one token too many", 1))
    assert caught.value.retry_after > 0
    with pytest.raises(TooManyRequests):
        journal.check_room()
    journal.remove(long)
    journal.add(request_of("later", limit - 3))


def test_generated_tokens_count() -> None:
    journal = Journal(10, 8)
    first = request_of("1", 4)
    journal.add(first)
    journal.append(first, [7, 8])
    assert journal.num_tokens == 6
    with pytest.raises(TooManyRequests):
        journal.add(request_of("2", 3))
    journal.append(first, [9] * 10)  # a live request is not held to the limit
    journal.remove(first)
    assert journal.num_tokens == 0


def test_a_request_above_the_limit_is_taken_alone() -> None:
    journal = Journal(10, 8)
    long = request_of("long", 100)
    journal.add(long)
    with pytest.raises(TooManyRequests):
        journal.add(request_of("2", 1))
    journal.remove(long)
    journal.add(request_of("2", 1))


def test_an_id_that_is_live_is_refused() -> None:
    journal = Journal(2)
    journal.add(request("1"))
    with pytest.raises(InvalidRequest, match="'1' is still running"):
        journal.add(request("1"))


def test_the_next_attempt_carries_prompt_and_emitted_tokens() -> None:
    journal = Journal(1)
    live = request("1")
    journal.add(live)
    assert live.message() == AddRequest("1", 1, packed([5, 6, 7]), b"", PARAMS)
    journal.assign(live, "engine-0")
    journal.append(live, [8, 9])
    live.interrupt("lost")
    again = live.message()
    assert again == AddRequest("1", 2, packed([5, 6, 7]), packed([8, 9]), PARAMS, age=again.age)
    assert again.age > 0
    journal.assign(live, "engine-1")
    assert journal.of_engine("engine-0") == []
    assert journal.of_engine("engine-1") == [live]


def test_each_attempt_carries_the_constraint() -> None:
    live = request("1")
    constraint = OutputConstraint(Grammar(GrammarKind.REGEX, "a+"))
    live.prompted = live.prompted.with_core(constraint=constraint)
    assert live.message().constraint == constraint
    unconstrained = request("1")
    assert unconstrained.message().constraint is None
    assert live.digest != unconstrained.digest
    live.attempt = 1
    live.interrupt("lost")
    assert live.message().constraint == constraint


def test_a_request_waits_runs_and_is_finished_once() -> None:
    journal = Journal(1)
    live = request("1")
    journal.add(live)
    assert (live.state, live.engine) == (RequestState.WAITING, "")
    journal.assign(live, "engine-0")
    assert (live.state, live.engine) == (RequestState.RUNNING, "engine-0")
    journal.assign(live, "engine-1")
    assert (live.state, live.engine, live.attempt) == (RequestState.RUNNING, "engine-1", 2)
    journal.finish(live)
    with pytest.raises(AssertionError):
        journal.assign(live, "engine-0")
    assert (live.state, live.engine, live.attempt) == (RequestState.FINISHED, "engine-1", 2)


def test_finished_request_is_live_until_its_consumer_is_done() -> None:
    journal = Journal(1)
    live = request("1")
    journal.add(live)
    journal.assign(live, "engine-0")
    journal.finish(live)
    assert (len(journal), journal.in_flight("engine-0"), journal.running()) == (1, 0, [])
    assert live.state is RequestState.FINISHED
    journal.remove(live)
    assert len(journal) == 0


def test_the_index_by_engine_is_always_that_of_the_requests() -> None:
    rng = random.Random(0)
    journal = Journal(1000)
    live: list[LiveRequest] = []
    for n in range(2000):
        action = rng.random()
        unfinished = [one for one in live if one.state is not RequestState.FINISHED]
        if action < 0.4 or not unfinished:
            live.append(request(str(n)))
            journal.add(live[-1])
        elif action < 0.7:
            journal.assign(rng.choice(unfinished), f"engine-{rng.randrange(4)}")
        elif action < 0.8:
            journal.finish(rng.choice(live))
        else:
            journal.remove(live.pop(rng.randrange(len(live))))
        for engine in (f"engine-{i}" for i in range(4)):
            running = {one for one in live if one.state is RequestState.RUNNING and one.engine == engine}
            assert set(journal.of_engine(engine)) == running
            assert journal.in_flight(engine) == len(journal.of_engine(engine))
    for one in live:
        journal.remove(one)
    assert vars(journal) | {"_empty": None} == vars(Journal(1000)) | {"_empty": None}


def test_requeued_request_leaves_its_engine_and_gets_another() -> None:
    journal = Journal(2)
    moved = request("1")
    journal.add(moved)
    journal.assign(moved, "engine-0")
    journal.requeue(moved)
    assert (moved.state, moved.engine, moved.attempt) == (RequestState.WAITING, "", 1)
    assert (journal.of_engine("engine-0"), journal.running()) == ([], [])
    journal.assign(moved, "engine-1")
    assert (journal.of_engine("engine-1"), moved.attempt) == ([moved], 2)


async def test_waiting_for_an_empty_journal_ends_with_the_last_request() -> None:
    journal = Journal(2)
    await journal.wait_empty()
    requests = [request("1"), request("2")]
    for one in requests:
        journal.add(one)
    waiting = asyncio.create_task(journal.wait_empty())
    journal.remove(requests[0])
    await asyncio.sleep(0)
    assert not waiting.done()
    journal.remove(requests[1])
    await waiting
