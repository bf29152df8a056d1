"""Ends, limits and resumed requests of the scheduler, through EngineCore and a fake executor."""

import math
from typing import Any

import msgspec
import pytest

from kvasir.engine.kv.kv_manager import longest_sequence
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import EOS, expected_output, next_token
from runtime.engine.kv_configs import kv_config


def prompt(length: int, salt: int = 0) -> list[int]:
    return [1 + (salt * 131 + i * 7) % 900 for i in range(length)]


# ------------------------------------------------------------------------------------------------- ends and limits


def test_an_end_of_sequence_token_ends_and_joins_the_output() -> None:
    engine = CoreHarness(model=lambda tokens: EOS if len(tokens) == 6 else next_token(tokens))
    answer = engine.add(add_request("a", prompt(4), 10, stop_token_ids=(EOS,)))
    engine.run()
    assert (len(answer.token_ids), answer.token_ids[-1]) == (3, EOS)
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, None)


def test_ignore_eos_goes_on_and_the_stop_tokens_still_hold() -> None:
    engine = CoreHarness(model=lambda tokens: {6: EOS, 8: 77}.get(len(tokens), next_token(tokens)))
    answer = engine.add(add_request("a", prompt(4), 10, ignore_eos=True, stop_token_ids=(77,)))
    engine.run()
    assert len(answer.token_ids) == 5
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, 77)


def test_an_eos_token_among_the_stop_tokens_is_reported() -> None:
    engine = CoreHarness(model=lambda tokens: EOS)
    answer = engine.add(add_request("a", prompt(4), 10, ignore_eos=True, stop_token_ids=(EOS,)))
    engine.run()
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, EOS)


def test_a_stop_token_at_the_last_position_is_a_stop() -> None:
    engine = CoreHarness(model=lambda tokens: 77)
    answer = engine.add(add_request("a", prompt(4), 1, stop_token_ids=(77,)))
    engine.run()
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, 77)


def test_prompt_and_output_together_stay_within_the_context() -> None:
    engine = CoreHarness(max_model_len=20)
    answer = engine.add(add_request("a", prompt(15), 100))
    engine.run()
    assert (len(answer.token_ids), answer.finish_reason) == (5, FinishReason.LENGTH)


def test_the_longest_request_fills_the_pool_to_its_last_slot() -> None:
    engine = CoreHarness(num_blocks=3, block_size=4)
    answer = engine.add(add_request("a", prompt(4), 100))
    engine.run()
    assert longest_sequence(kv_config(3, 4), longest_chunk=64) == 13
    assert (len(answer.token_ids), answer.finish_reason) == (9, FinishReason.LENGTH)


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    engine = CoreHarness(num_blocks=3, block_size=4)
    answer = engine.add(add_request("a", prompt(13), 1))
    other = engine.add(add_request("b", prompt(12), 1))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert answer.error == (
        "the prompt has 13 tokens and this engine holds 13 of prompt and output together: shorten the prompt"
    )
    assert answer.refusal is RefusalKind.INVALID
    assert other.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("token_ids", "error"),
    [
        ([], "the prompt has no tokens"),
        ([1, 1000], "prompt: token id 1000 is out of range (0 to 999)"),
        ([1, 2**32 - 1], f"prompt: token id {2**32 - 1} is out of range (0 to 999)"),
    ],
)
def test_a_prompt_that_would_break_the_model_is_refused(token_ids: list[int], error: str) -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", token_ids))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert answer.error.startswith(error)
    assert answer.refusal is RefusalKind.INVALID
    assert engine.executor.steps == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"stop_token_ids": (1000,)}, "stop_token_ids: token id 1000 is out of range (0 to 999)"),
        ({"allowed_token_ids": (3, -1)}, "allowed_token_ids: token id -1 is out of range (0 to 999)"),
        ({"logit_bias": ((1000, 1.0),)}, "logit_bias: token id 1000 is out of range (0 to 999)"),
        ({"bad_words": ((3,), (4, 1000))}, "bad_words: token id 1000 is out of range (0 to 999)"),
        ({"bad_words": ((3,), ())}, "bad_words holds a word of 0 tokens: give 1 to 1024"),
        ({"seed": 2**63}, f"seed is {2**63}: give an integer of 64 bits"),
        ({"logprobs": -1}, "logprobs is -1: give 0 to 20"),
        ({"max_tokens": 0}, "max_tokens is 0: give 1 or more"),
        ({"top_p": 1.5}, "top_p is 1.5: give a number above 0 and at most 1"),
        ({"temperature": math.nan}, "temperature is nan: give a number that is 0"),
    ],
)
def test_parameters_that_would_break_the_sampler_are_refused(changes: dict[str, Any], error: str) -> None:
    engine = CoreHarness()
    message = add_request("a", prompt(4))
    params = msgspec.structs.replace(message.params, **changes)
    answer = engine.add(msgspec.structs.replace(message, params=params))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert error in answer.error
    assert answer.refusal is RefusalKind.INVALID
    assert engine.executor.steps == []


# ---------------------------------------------------------------------------------------------- log probabilities


def test_log_probabilities_reach_the_request_of_their_row() -> None:
    engine = CoreHarness()
    plain = engine.add(add_request("plain", prompt(5), 3))
    asks = engine.add(add_request("asks", prompt(6, 1), 3, logprobs=0))
    engine.run()
    assert plain.logprobs == []
    assert asks.logprobs == [-token_id for token_id in asks.token_ids]


def test_log_probabilities_of_a_prompt_come_with_its_first_token() -> None:
    engine = CoreHarness(budget=8)
    plain = engine.add(add_request("plain", prompt(5), 3))
    asks = engine.add(add_request("asks", prompt(20, 1), 3, prompt_logprobs=0))
    engine.step()
    assert (len(plain.token_ids), asks.prompt_logprobs) == (1, [])
    engine.run()
    assert plain.prompt_logprobs == []
    assert asks.prompt_logprobs == [[-token_id for token_id in prompt(20, 1)[1:]]]


def test_prompt_logprobs_come_once_despite_preemption() -> None:
    engine = CoreHarness(num_blocks=16)
    answers = [engine.add(add_request(f"r{i}", prompt(8, i), 30, logprobs=0, prompt_logprobs=0)) for i in range(6)]
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    for i, answer in enumerate(answers):
        assert answer.prompt_logprobs == [[-token_id for token_id in prompt(8, i)[1:]]]


# ------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("emitted", [1, 5, 9])
def test_a_resumed_request_continues_at_its_position(emitted: int) -> None:
    whole = expected_output(prompt(11), 10)
    engine = CoreHarness()
    answer = engine.add(add_request("a", prompt(11), 10, output=whole[:emitted], attempt=1))
    engine.run()
    assert answer.token_ids == whole
    assert engine.executor.steps[0].new[0].num_prompt_tokens == 11


@pytest.mark.parametrize(
    ("output", "reason", "stop_token_id"),
    [
        ([5, 6, 7], FinishReason.LENGTH, None),
        ([5, 6, 7, 8], FinishReason.LENGTH, None),
        ([5, EOS], FinishReason.STOP, None),
        ([5, 77], FinishReason.STOP, 77),
    ],
)
def test_a_request_resumed_at_its_end_is_ended_without_a_step(
    output: list[int], reason: FinishReason, stop_token_id: int | None
) -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", prompt(4), 3, output=output, stop_token_ids=(77,)))
    engine.run()
    assert (answer.finish_reason, answer.stop_token_id, answer.token_ids) == (reason, stop_token_id, output)
    assert engine.executor.steps == []


def test_a_request_resumed_beyond_a_smaller_context_ends() -> None:
    engine = CoreHarness(max_model_len=8)
    answer = engine.add(add_request("a", prompt(8), 10, output=[5]))
    engine.run()
    assert (answer.finish_reason, answer.token_ids) == (FinishReason.LENGTH, [5])
