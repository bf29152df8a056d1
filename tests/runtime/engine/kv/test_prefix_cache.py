"""The prefix cache through EngineCore: hits, misses, and how outputs report them."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.kv.prefix_cache import PrefixCache
from kvasir.link.protocol import FinishReason
from kvasir.worker.step import NAN_COMPUTED, StepOutput
from runtime.engine.core_harness import FRONTEND, Answer, CoreHarness, add_request
from runtime.engine.fake_executor import EOS, NAN, expected_output, next_token
from runtime.link_messages import hashes_of

SYSTEM = list(range(100, 124))
"""Six blocks of four tokens."""


def run(engine: CoreHarness, request_id: str, prompt: list[int], max_tokens: int = 3, **options: Any) -> Answer:
    answer = engine.add(add_request(request_id, prompt, max_tokens, **options))
    engine.run()
    assert answer.token_ids == expected_output(prompt, max_tokens)
    return answer


def cache_of(engine: CoreHarness) -> PrefixCache:
    cache = engine.blocks.pool.cache
    assert cache is not None
    return cache


def computed(engine: CoreHarness, request_id: str) -> int:
    rows = (row for step in engine.executor.steps for row in step.scheduled)
    return sum(row.num_new_tokens for row in rows if row.request_id == request_id)


def test_a_prompt_with_a_known_beginning_computes_only_the_rest() -> None:
    engine = CoreHarness()
    run(engine, "first", [*SYSTEM, 1, 2, 3], max_tokens=1)
    answer = run(engine, "second", [*SYSTEM, 4, 5], max_tokens=1)
    assert computed(engine, "second") == 2
    assert answer.num_cached_tokens == [24]
    assert (engine.blocks.num_queried_tokens, engine.blocks.num_hit_tokens) == (27 + 26, 24)
    run(engine, "third", [*SYSTEM[:8], 6], max_tokens=1)
    assert (engine.blocks.num_queried_tokens, engine.blocks.num_hit_tokens) == (27 + 26 + 9, 24 + 8)


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (24, 20)])
def test_the_last_block_of_a_fully_cached_prompt_is_recomputed(length: int, cached: int) -> None:
    engine = CoreHarness()
    run(engine, "first", SYSTEM)
    answer = run(engine, "second", SYSTEM[:length])
    assert answer.num_cached_tokens == [cached, None, None]


def test_what_a_request_generated_is_found_by_the_next_turn() -> None:
    engine = CoreHarness()
    answer = run(engine, "first", SYSTEM, max_tokens=20)
    turn = run(engine, "second", [*SYSTEM, *answer.token_ids, 7, 8], max_tokens=2)
    assert turn.num_cached_tokens[0] == 40  # the last of the 44 tokens was never computed


def test_requests_of_one_step_share_their_prefix() -> None:
    engine = CoreHarness()
    answers = [engine.add(add_request(name, [*SYSTEM, i], 3)) for i, name in enumerate("abc")]
    engine.step()
    assert [computed(engine, name) for name in "abc"] == [25, 1, 1]
    assert engine.blocks.pool.num_used == 6 + 3
    engine.run()
    for i, answer in enumerate(answers):
        assert answer.token_ids == expected_output([*SYSTEM, i], 3)


def test_a_prompt_of_one_block_is_shared_within_its_step() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", SYSTEM[:4], 3))
    late = engine.add(add_request("b", SYSTEM[:5], 3))
    engine.run()
    assert late.num_cached_tokens == [4, None, None]


def test_computed_chunks_of_a_prompt_are_found() -> None:
    engine = CoreHarness(budget=10)
    engine.add(add_request("a", SYSTEM, 8))
    engine.step()
    late = engine.add(add_request("b", SYSTEM, 8))
    engine.run()
    assert late.num_cached_tokens[0] == 20
    assert late.token_ids == engine.answers["a"].token_ids == expected_output(SYSTEM, 8)


def test_another_first_token_finds_nothing() -> None:
    engine = CoreHarness()
    run(engine, "first", SYSTEM)
    assert run(engine, "second", [5, *SYSTEM[1:]]).num_cached_tokens[0] == 0


def test_requests_of_different_salts_share_nothing() -> None:
    engine = CoreHarness()
    run(engine, "plain", SYSTEM)
    assert run(engine, "salted", SYSTEM, cache_salt="tenant").num_cached_tokens[0] == 0
    assert run(engine, "again", SYSTEM, cache_salt="tenant").num_cached_tokens[0] == 20
    assert run(engine, "other", SYSTEM, cache_salt="tenants").num_cached_tokens[0] == 0


def test_a_salt_holds_for_prompts_shorter_than_a_block() -> None:
    engine = CoreHarness()
    answer = run(engine, "salted", [1, 2], max_tokens=10, cache_salt="tenant")
    assert run(engine, "plain", [1, 2, *answer.token_ids]).num_cached_tokens[0] == 0
    assert run(engine, "same", [1, 2, *answer.token_ids], cache_salt="tenant").num_cached_tokens[0] == 8


def test_prompt_logprobs_are_not_read_from_the_cache() -> None:
    engine = CoreHarness()
    run(engine, "first", SYSTEM)
    answer = run(engine, "second", SYSTEM, prompt_logprobs=0)
    assert answer.num_cached_tokens[0] == 0
    assert computed(engine, "second") == 24 + 2
    assert engine.blocks.num_queried_tokens == 24


def test_blocks_of_a_request_with_nan_are_not_found() -> None:
    engine = CoreHarness(model=lambda tokens: NAN if 999 in tokens else next_token(tokens))
    run(engine, "before", SYSTEM)
    answer = engine.add(add_request("broken", [*SYSTEM, 999, *SYSTEM]))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert len(cache_of(engine)) == 0  # the blocks that it found may have been the cause
    assert run(engine, "after", SYSTEM).num_cached_tokens[0] == 0
    assert run(engine, "again", SYSTEM).num_cached_tokens[0] == 20


def test_blocks_before_a_preemption_and_nan_are_not_found() -> None:
    """With overlapped steps a request may lose its blocks before its token comes."""
    engine = CoreHarness()
    engine.add(add_request("broken", SYSTEM))
    engine.scheduler.schedule()
    engine.scheduler._preempt(engine.scheduler.requests["broken"])
    assert len(cache_of(engine)) == 6
    engine.scheduler.update(StepOutput([[]], failed={0: NAN_COMPUTED}))
    assert len(cache_of(engine)) == 0
    assert engine.scheduler.requests == {}
    engine.blocks.check_idle()


def test_blocks_of_a_request_aborted_before_nan_are_not_found() -> None:
    engine = CoreHarness(model=lambda tokens: NAN)
    engine.add(add_request("broken", SYSTEM))
    output = engine.core.execute()
    engine.core.abort(FRONTEND, ["broken"])
    assert len(cache_of(engine)) == 6
    engine.take(engine.core.update(output))
    assert len(cache_of(engine)) == 0
    engine.run()


def test_without_a_prefix_cache_everything_is_computed() -> None:
    engine = CoreHarness(prefix_caching=False)
    run(engine, "first", SYSTEM, hashed_for=4)
    assert run(engine, "second", SYSTEM, hashed_for=4).num_cached_tokens[0] == 0
    assert (engine.blocks.num_queried_tokens, engine.blocks.num_hit_tokens) == (0, 0)


# ---------------------------------------------------------------------------------------------- repeated look-ups


def count_lookups(engine: CoreHarness, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for each look-up in the cache."""
    lookups: list[int] = []
    cache = cache_of(engine)
    find = cache.find

    def counted(group: int, hashes: Sequence[bytes], most: int) -> list[int]:
        lookups.append(1)
        return find(group, hashes, most)

    monkeypatch.setattr(cache, "find", counted)
    return lookups


def test_a_waiting_request_is_looked_up_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CoreHarness(num_blocks=16, block_size=16)
    engine.add(add_request("runs", [7] * 100, 120))
    engine.step()
    lookups = count_lookups(engine, monkeypatch)
    waits = engine.add(add_request("waits", [8] * 100, 4))
    for _ in range(64):
        engine.step()
    assert waits.token_ids == []
    assert 4 <= len(lookups) <= 9  # a block is filled, and one is taken, every 16 steps
    engine.run()
    assert waits.token_ids == expected_output([8] * 100, 4)


def test_a_request_is_looked_up_once_to_be_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CoreHarness()
    run(engine, "first", SYSTEM)
    lookups = count_lookups(engine, monkeypatch)
    assert run(engine, "second", SYSTEM).num_cached_tokens[0] == 20
    assert len(lookups) == 1


def test_a_waiting_request_finds_blocks_computed_meanwhile() -> None:
    engine = CoreHarness(num_blocks=16, block_size=4)
    engine.add(add_request("runs", [*SYSTEM, 7], 12))
    waits = engine.add(add_request("waits", [*SYSTEM, 7, *[9] * 30], 4))
    engine.run()
    assert waits.num_cached_tokens[0] == 24
    assert waits.token_ids == expected_output([*SYSTEM, 7, *[9] * 30], 4)


def test_a_waiting_request_notices_that_its_prefix_is_gone() -> None:
    engine = CoreHarness(num_blocks=16, block_size=4)
    run(engine, "first", SYSTEM)
    request = EngineRequest(FRONTEND, add_request("waits", SYSTEM))
    assert engine.blocks.cost_of(request) == 6  # one empty block, and five that have no users
    engine.blocks.reset_prefix_cache()
    assert request.lookup is not None
    assert request.lookup.tables[0]
    engine.blocks.admit(request)
    assert request.num_computed_tokens == 0


# -------------------------------------------------------------------------------------------------- admission, LRU


def test_cached_blocks_that_nobody_uses_count_as_free() -> None:
    engine = CoreHarness(num_blocks=8)
    run(engine, "first", SYSTEM)
    assert engine.blocks.pool.num_free == 8
    run(engine, "second", list(range(300, 330)), max_tokens=1)  # takes all 8 blocks
    assert run(engine, "third", SYSTEM).num_cached_tokens[0] == 0


def test_a_hit_on_free_blocks_needs_them_like_empty_ones() -> None:
    """Six free blocks, all of them cached: a hit on the six needs a seventh, and must wait for it."""
    engine = CoreHarness(num_blocks=9)
    run(engine, "first", SYSTEM, max_tokens=1)
    engine.add(add_request("busy", list(range(300, 309)), 3))
    engine.step()
    assert engine.blocks.pool.num_free == 6
    hit = engine.add(add_request("hit", [*SYSTEM, 1], 1))
    engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ["hit"]
    engine.run()
    assert hit.num_cached_tokens == [24]
    assert hit.token_ids == expected_output([*SYSTEM, 1], 1)


def test_cached_blocks_in_use_again_are_not_free_for_others() -> None:
    """Nine blocks, of which seven are cached and free: with six of them revived, three are left for others."""
    engine = CoreHarness(num_blocks=9, max_num_seqs=2)
    run(engine, "first", SYSTEM, max_tokens=4)
    running = engine.add(add_request("a", [*SYSTEM, 1], 8))
    other = engine.add(add_request("b", list(range(300, 308)), 8))
    engine.step()
    assert running.num_cached_tokens == [24]
    assert [request.request_id for request in engine.scheduler.waiting] == ["b"]
    engine.run()
    assert other.token_ids == expected_output(list(range(300, 308)), 8)


def test_the_prefix_that_was_used_last_is_kept_longest() -> None:
    engine = CoreHarness(num_blocks=12)
    one, other = [1] * 13, [2] * 13
    run(engine, "one", one, 1)
    run(engine, "other", other, 1)
    run(engine, "touch", one, 1)
    run(engine, "more", [3] * 25, 1)  # seven blocks: the six that hold no prefix, and one of `other`
    assert run(engine, "one again", one, 1).num_cached_tokens[0] == 12
    assert run(engine, "other again", other, 1).num_cached_tokens[0] == 8


# ------------------------------------------------------------------------------------------------------ preemption


def test_a_preempted_request_finds_its_blocks() -> None:
    engine = CoreHarness(num_blocks=16)
    run(engine, "before", SYSTEM, 1)
    answers = [engine.add(add_request(f"r{i}", [*SYSTEM[: 8 + i]], 32)) for i in range(6)]
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    for i, answer in enumerate(answers):
        assert answer.token_ids == expected_output(SYSTEM[: 8 + i], 32)
        assert answer.num_cached_tokens == [(7 + i) // 4 * 4] + [None] * 31
    total = sum(row.num_new_tokens for step in engine.executor.steps for row in step.scheduled)
    assert total < 24 + 6 * 36 + engine.scheduler.num_preemptions * 16


def test_hits_of_a_resumed_request_count_its_prompt_only() -> None:
    engine = CoreHarness()
    whole = run(engine, "first", SYSTEM, 20).token_ids
    answer = engine.add(add_request("second", SYSTEM, 20, output=whole[:18], attempt=1))
    engine.run()
    assert answer.token_ids == whole
    assert answer.num_cached_tokens == [24, None]


# ------------------------------------------------------------------------------------------- hashes of the frontend


def test_hashes_of_the_frontend_are_used_and_extended() -> None:
    engine = CoreHarness()
    message = add_request("first", SYSTEM, 12, hashed_for=4)
    engine.add(message)
    request = engine.scheduler.requests["first"]
    engine.run()
    answer = run(engine, "second", [*SYSTEM, *engine.answers["first"].token_ids, 9], hashed_for=4)
    assert answer.num_cached_tokens[0] == 32
    assert request.block_hashes[:6] == hashes_of(message)
    assert len(request.block_hashes) == 8


@pytest.mark.parametrize("hashed_for", [3, 5, 8])
def test_hashes_for_another_block_size_are_not_trusted(hashed_for: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = CoreHarness()
    with caplog.at_level(logging.WARNING):
        run(engine, "first", SYSTEM, hashed_for=hashed_for)
        answer = run(engine, "second", [*SYSTEM, 1], hashed_for=hashed_for)
    assert answer.num_cached_tokens[0] == 24
    assert caplog.text.count("do not fit their prompts") == 1


def test_an_end_of_sequence_token_in_a_full_block_hurts_nobody() -> None:
    engine = CoreHarness(model=lambda tokens: EOS if len(tokens) == 7 else next_token(tokens))
    first = engine.add(add_request("first", [1, 2, 3, 4], 10))
    engine.run()
    assert first.token_ids[-1] == EOS
    again = engine.add(add_request("again", [1, 2, 3, 4], 10))
    engine.run()
    assert again.token_ids == first.token_ids
