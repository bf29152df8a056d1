"""Mistakes of a user are rejected with the field's name; missing fields are filled in."""

import math
from typing import Any

import pytest

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.request_errors import InvalidRequest
from kvasir.client.service_limits import ServiceLimits
from kvasir.hub.tokenizer import Tokenizer
from kvasir.request.params import BOUNDS, SamplingFields, SamplingParams
from runtime.client import trained
from runtime.client.input.processors import LIMIT, processor_of

LIMITED = {"min_tokens", "top_k"}
"""Numbers that the request or the vocabulary limits further."""


def test_unset_fields_get_defaults_and_the_rest_of_the_context(tokenizer: Tokenizer) -> None:
    processor = processor_of(tokenizer, generation_defaults={"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    params = processor.prepare([5, 6, 7]).params
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)
    assert params.max_tokens == LIMIT - 3
    params = processor.prepare([5], SamplingFields(temperature=0, top_k=-1, top_p=1.0)).params
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 0, 1.0)


def test_max_new_tokens_of_the_model_is_a_default(tokenizer: Tokenizer) -> None:
    processor = processor_of(tokenizer, max_new_tokens=10)
    assert processor.prepare([5]).params.max_tokens == 10
    assert processor.prepare([5], max_tokens=20).params.max_tokens == 20
    assert processor.prepare([5], SamplingFields(min_tokens=12)).params.max_tokens == 12
    assert processor.prepare([5] * (LIMIT - 4)).params.max_tokens == 4


def test_settings_of_the_model_that_are_not_used_are_logged(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    processor_of(tokenizer, notes=("generation_config.json: top_p is 2 and is not used",))
    assert caplog.messages == ["generation_config.json: top_p is 2 and is not used"]


def test_without_defaults_of_the_model_nothing_is_cut_off(processor: InputProcessor) -> None:
    params = processor.prepare([5], SamplingFields(seed=-(2**63))).params
    assert params == SamplingParams(max_tokens=LIMIT - 1, seed=-(2**63))


def test_seeds_that_are_not_given_follow_from_the_servers_seed(tokenizer: Tokenizer) -> None:
    def seeds(seed: int) -> list[int]:
        processor = InputProcessor(
            trained.model_info(), tokenizer, ChatTemplates(None), ServiceLimits(LIMIT), max_queued=2, seed=seed
        )
        return [processor.prepare([5], SamplingFields(seed=9)).params.seed] + [
            processor.prepare([5]).params.seed for _ in range(20)
        ]

    assert seeds(1) == seeds(1)
    assert seeds(1)[0] == 9
    assert len({*seeds(1), *seeds(2)}) == 41
    assert all(-(2**63) <= seed < 2**63 for seed in seeds(1))


def test_seeds_that_are_not_given_differ_and_fit_into_64_bits(processor: InputProcessor) -> None:
    seeds = {processor.prepare([5]).params.seed for _ in range(50)}
    assert len(seeds) == 50
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert min(seeds) < 0 < max(seeds)


@pytest.mark.parametrize("top_k", [700, 701, 2**63, 2**64 - 1])
def test_a_top_k_beyond_the_vocabulary_is_no_more_than_all_of_it(processor: InputProcessor, top_k: int) -> None:
    assert processor.prepare([5], SamplingFields(top_k=top_k)).params.top_k == 700


def test_stop_tokens_are_kept_once(processor: InputProcessor) -> None:
    assert processor.prepare([5], SamplingFields(stop_token_ids=[9, 8, 9])).params.stop_token_ids == (9, 8)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "0 .greedy. or more"),
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", math.inf, "temperature is inf"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_p", math.nan, "top_p is nan"),
        ("top_k", -2, "top_k is -2"),
        ("seed", 2**63, "64 bits"),
        ("seed", -(2**63) - 1, "64 bits"),
        ("stop_token_ids", [700], "token id 700 is out of range .0 to 699"),
        ("stop_token_ids", [-1], "token id -1 is out of range .0 to 699"),
        ("stop_token_ids", list(range(65)), "at most 64"),
        ("allowed_token_ids", [5, 700], "token id 700 is out of range"),
        ("logit_bias", {"five": 1.0}, "'five' is not a token id"),
        ("logit_bias", {"05": 1.0}, "'05' is not a token id"),
        ("logit_bias", {"-1": 1.0}, "'-1' is not a token id"),
        ("logit_bias", {"700": 1.0}, "token id 700 is out of range"),
        ("logit_bias", {"9" * 5000: 1.0}, "is not a token id"),
        ("bad_words", [""], "'' has no token"),
        ("bad_words", ["ok", " \n"], "has no token"),
        ("bad_words", ["x"] * 257, "at most 256 words"),
        ("bad_words", ["x" * 129], "of 128 characters"),
        ("stop", "", "empty string"),
        ("stop", ["a", ""], "empty string"),
        ("stop", [str(n) for n in range(65)], "at most 64 strings"),
        ("stop", ["x" * 4097], "of 4096 characters"),
        ("min_tokens", LIMIT, f"at most {LIMIT - 1} tokens can be generated"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    processor: InputProcessor, field: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        processor.prepare([5], SamplingFields(**{field: value}))
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "prompt is empty"), ([5, 700], "token id 700 is out"), ([-1], "token id -1 is out")],
)
def test_a_prompt_that_no_engine_can_take_is_refused(
    processor: InputProcessor, prompt: list[int], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        processor.prepare(prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("length", "max_tokens", "param", "message"),
    [
        (LIMIT, None, "prompt", f"has {LIMIT} tokens.*at most {LIMIT - 1} tokens"),
        (LIMIT + 9, 1, "prompt", f"has {LIMIT + 9} tokens"),
        (60, 5, "max_tokens", "64 tokens.*answer of 5 tokens.*has 60 tokens.*at most 4"),
    ],
)
def test_what_exceeds_the_context_is_refused_with_the_numbers(
    processor: InputProcessor, length: int, max_tokens: int | None, param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        processor.prepare([5] * length, max_tokens=max_tokens)
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")
    assert "this model's maximum context length is" in str(caught.value)  # litellm looks for these words
    assert "prompt is too long" in str(caught.value)  # and LangChain for these


def test_what_just_fits_is_accepted(processor: InputProcessor) -> None:
    assert processor.prepare([5] * 60, max_tokens=4).params.max_tokens == 4
    assert processor.prepare([5] * (LIMIT - 1)).params.max_tokens == 1


@pytest.mark.parametrize("field", sorted(BOUNDS.keys() & set(SamplingFields.__struct_fields__) - LIMITED))
def test_what_is_asked_reaches_the_engine(processor: InputProcessor, field: str) -> None:
    least, most = BOUNDS[field].least, BOUNDS[field].most
    default = getattr(SamplingParams(max_tokens=1, seed=0), field)
    value = most if least == default else least
    params = processor.prepare([5], SamplingFields(**{field: value})).params  # type: ignore[arg-type]
    assert getattr(params, field) == value != default


def test_penalties_of_the_models_own_are_its_defaults(tokenizer: Tokenizer) -> None:
    processor = processor_of(tokenizer, generation_defaults={"repetition_penalty": 1.05, "min_p": 0.02})
    params = processor.prepare([5]).params
    assert (params.repetition_penalty, params.min_p) == (1.05, 0.02)
    params = processor.prepare([5], SamplingFields(repetition_penalty=1, min_p=0)).params
    assert (params.repetition_penalty, params.min_p) == (1.0, 0.0)


def test_bias_and_allowed_tokens_are_kept_once_and_in_order(processor: InputProcessor) -> None:
    params = processor.prepare(
        [5], SamplingFields(logit_bias={"9": 100, "8": -100.0}, allowed_token_ids=[9, 8, 9])
    ).params
    assert params.logit_bias == ((9, 100.0), (8, -100.0))
    assert params.allowed_token_ids == (9, 8)


def test_bad_word_is_excluded_at_the_beginning_and_after_a_space(
    processor: InputProcessor, tokenizer: Tokenizer
) -> None:
    words = processor.prepare([5], SamplingFields(bad_words=[" fox", "fox", "。"])).params.bad_words
    assert len(set(words)) == len(words)
    texts = [tokenizer.decode(word) for word in words]
    assert texts == ["fox", " fox", "。", " 。"]


def test_temperature_above_the_range_is_the_highest(processor: InputProcessor) -> None:
    assert processor.prepare([5], SamplingFields(temperature=1e308)).params.temperature == 1e6


def test_children_differ_only_in_their_seeds(processor: InputProcessor) -> None:
    parent = processor.prepare([5], SamplingFields(seed=2**63 - 2))
    children = [parent.child(index) for index in range(4)]
    assert [child.params.seed for child in children] == [2**63 - 2, 2**63 - 1, -(2**63), -(2**63) + 1]
    assert len({(tuple(c.prompt_token_ids), c.params.temperature) for c in children}) == 1


def test_the_first_of_the_children_alone_has_the_prompt_scored(processor: InputProcessor) -> None:
    parent = processor.prepare([5], SamplingFields(prompt_logprobs=2))
    assert [parent.child(index).params.prompt_logprobs for index in range(3)] == [2, None, None]


def test_larger_number_of_prompt_logprobs_wins(processor: InputProcessor) -> None:
    asked = SamplingFields(prompt_logprobs=3)
    assert processor.prepare([5], asked, prompt_logprobs=5).params.prompt_logprobs == 5
    assert processor.prepare([5], asked, prompt_logprobs=0).params.prompt_logprobs == 3
    assert processor.prepare([5], prompt_logprobs=0).params.prompt_logprobs == 0
    assert processor.prepare([5]).params.prompt_logprobs is None


def test_a_priority_is_refused_where_no_engine_looks_at_it(tokenizer: Tokenizer) -> None:
    processor = processor_of(tokenizer)
    with pytest.raises(InvalidRequest, match="--scheduling-policy priority") as caught:
        processor.prepare([5], priority=-1)
    assert caught.value.param == "priority"
    processor = InputProcessor(trained.model_info(), tokenizer, ChatTemplates(None), ServiceLimits(LIMIT), 2)
    assert processor.prepare([5], priority=-1).core.priority == -1
