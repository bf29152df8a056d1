"""The arguments of LLM's methods and of SamplingParams that vLLM has too."""

import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir import LLM, BeamSearchParams, LoRARequest, SamplingParams, StructuredOutputsParams
from kvasir.config.options import ConfigError
from kvasir.offline.sampling_params import _NOT_YET

CONTEXT = 64
OPTIONS: dict[str, Any] = {"max_model_len": CONTEXT, "kv_cache_memory_bytes": "32Mi", "threads": 1}
ASKED = [{"role": "user", "content": "What is Kvasir?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo://", **OPTIONS) as llm:
        yield llm


def params_of(**fields: Any) -> SamplingParams:
    return SamplingParams(**fields)


# ----------------------------------------------------------------------------------------------- the context


@pytest.mark.parametrize("length", [1, 40, CONTEXT - 1])
@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": CONTEXT}, {"max_tokens": 10**9}, {"max_tokens": None}, {"max_tokens": 999, "min_tokens": 99}],
)
def test_an_output_ends_with_the_context(llm: LLM, length: int, fields: dict[str, Any]) -> None:
    [output] = llm.generate([[5] * length], SamplingParams(ignore_eos=True, **fields))
    assert len(output.outputs[0].token_ids) == CONTEXT - length
    assert output.outputs[0].finish_reason == "length"


def test_a_prompt_that_fills_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompt 1: .*at most 63 tokens"):
        llm.generate([[5], [5] * CONTEXT])
    with pytest.raises(ValueError, match="min_tokens is 9"):
        llm.generate("Kvasir", SamplingParams(min_tokens=9, max_tokens=8))


@pytest.mark.parametrize(("keep", "left"), [(7, 7), (-1, CONTEXT - 8)])
def test_a_prompt_is_cut_at_its_beginning(llm: LLM, keep: int, left: int) -> None:
    prompt = [*range(300, 360)]
    params = SamplingParams(truncate_prompt_tokens=keep, max_tokens=8)
    [output] = llm.generate([prompt], params)
    assert output.prompt_token_ids == prompt[-left:]
    for text in ("Kvasir is a serving system. " * 20, [{"role": "user", "content": "Kvasir " * 90}]):
        [output] = llm.generate(text, params) if isinstance(text, str) else llm.chat(text, params)
        assert len(output.prompt_token_ids) == left
    assert llm.generate("Kvasir", params)[0].prompt_token_ids == llm.generate("Kvasir")[0].prompt_token_ids


# ---------------------------------------------------------------------------------------- sampling parameters


@pytest.mark.parametrize("name", _NOT_YET)
def test_a_parameter_of_vllm_is_taken_if_it_asks_for_nothing(name: str) -> None:
    neutral, _ = _NOT_YET[name]
    for value in neutral:
        params_of(**{name: value})
    with pytest.raises(ValueError, match=f"^{name} is not supported: "):
        params_of(**{name: 77})


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_log_probabilities_than_20_are_refused(name: str) -> None:
    for value in (-1, 21, 10**6):
        with pytest.raises(ValueError, match=f"{name} is {value}: give at most 20"):
            params_of(**{name: value})
    assert getattr(params_of(**{name: True}), name) == 1


def test_a_constraint_may_be_a_dict(llm: LLM) -> None:
    for fields in ({"choice": ["a", "b"]}, {"regex": "[ab]"}, {"json": {"type": "null"}}):
        as_dict = params_of(structured_outputs=fields)
        assert as_dict.structured_outputs == StructuredOutputsParams(**fields)
    changed = SamplingParams()
    changed.structured_outputs = {"choice": ["yes"]}  # type: ignore[assignment]
    assert llm.generate("Is it?", changed)[0].outputs[0].text == "yes"
    for wrong in ({}, {"choise": ["a"]}, {"choice": "a"}):
        with pytest.raises(ValueError, match="structured_outputs"):
            params_of(structured_outputs=wrong)


def test_parameters_that_were_changed_are_checked_again(llm: LLM) -> None:
    params = SamplingParams(seed=-1)
    assert params.seed is None
    copied = params.clone()
    params.temperature = "hot"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="prompt 0: temperature: Expected"):
        llm.generate("Kvasir", params)
    copied.stop = None  # type: ignore[assignment]
    assert llm.generate("Kvasir", copied)[0].finished


def test_a_prefix_is_not_read_if_that_is_requested(llm: LLM) -> None:
    prompt, fresh = [*range(400, 440)], SamplingParams(skip_reading_prefix_cache=True)
    found = [llm.generate([prompt], params)[0].num_cached_tokens for params in (None, None, fresh, fresh)]
    assert found == [0, 32, 0, 0]
    assert llm.reset_prefix_cache()
    assert llm.generate([prompt])[0].num_cached_tokens == 0
    salted: list[Any] = [{"prompt_token_ids": prompt, "cache_salt": salt} for salt in ("a", "b", "a")]
    assert [llm.generate(each)[0].num_cached_tokens for each in salted] == [0, 0, 32]


# ------------------------------------------------------------------------------------------------------ chats


def test_a_chat_template_and_tools_of_a_call_are_used(llm: LLM) -> None:
    template = "{{ messages[0].content }}|{{ tools[0].function.name if tools }}|{{ mood }}"
    kwargs = {"chat_template": template, "chat_template_kwargs": {"mood": "calm"}}
    [plain] = llm.chat(ASKED, **kwargs)  # type: ignore[arg-type]
    [given] = llm.chat(ASKED, tools=TOOLS, **kwargs)  # type: ignore[arg-type]
    assert (plain.prompt, given.prompt) == ("What is Kvasir?||calm", "What is Kvasir?|get_weather|calm")
    [usual, again] = llm.chat([ASKED, ASKED], lora_request=None)
    assert usual.prompt == again.prompt != plain.prompt


def test_a_message_is_continued_as_in_vllms_examples(llm: LLM) -> None:
    messages = [*ASKED, {"role": "assistant", "content": "Kvasir is"}]
    [output] = llm.chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert (output.prompt or "").endswith("Kvasir is")


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"chat_template": "{% if"}, ValueError, "prompt 0: chat_template is not a Jinja template"),
        ({"tools": [{"type": "function"}]}, ValueError, r"prompt 0: tools\[0\].function is missing"),
        ({"mm_processor_kwargs": {"a": 1}}, ValueError, "mm_processor_kwargs is not supported"),
        ({"chat_template_content_format": "openai"}, ValueError, r"an argument of LLM\(...\)"),
        ({"lora_request": object()}, ValueError, "lora_request is of type object: give a LoRARequest"),
        ({"lora_request": [None, None]}, ValueError, "2 lora_requests for 1 prompts"),
        ({"lora_request": LoRARequest("sql", 1, "/no/such")}, ValueError, "create it with enable_lora=True"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            ValueError,
            "prompt 0: continue_final_message and add_generation_prompt exclude each other",
        ),
        ({"temperature": 0}, TypeError, "unexpected keyword argument 'temperature'"),
    ],
)
def test_a_wrong_argument_of_a_chat_is_named(
    llm: LLM, arguments: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        llm.chat(ASKED, **arguments)


def test_the_template_of_an_llm_is_used_for_all_chats() -> None:
    with LLM("demo://", chat_template="{{ messages[0].content }}!", **OPTIONS) as llm:
        assert llm.chat(ASKED)[0].prompt == "What is Kvasir?!"


# ----------------------------------------------------------------------------------------------------- others


def test_beams_are_the_most_likely_texts(llm: LLM) -> None:
    """All texts of two tokens, scored by one: the search over three beams finds the best of those that it keeps."""
    [output] = llm.beam_search(["Kvasir is"], BeamSearchParams(beam_width=3, max_tokens=2, ignore_eos=True))
    scores = [sequence.cum_logprob for sequence in output.sequences]
    assert scores == sorted(scores, reverse=True)
    prompt = llm.generate("Kvasir is")[0].prompt_token_ids
    for sequence in output.sequences:
        assert sequence.tokens[: len(prompt)] == prompt
        assert sequence.finish_reason == "length"
        scored = llm.generate([sequence.tokens], SamplingParams(prompt_logprobs=0, max_tokens=1))[0].prompt_logprobs
        assert scored is not None
        chosen = [place[token].logprob for place, token in zip(scored, sequence.tokens, strict=True) if place]
        assert math.isclose(sequence.cum_logprob, sum(chosen[-2:]), abs_tol=1e-3)
    greedy = llm.generate("Kvasir is", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=0))
    assert scores[0] >= (greedy[0].outputs[0].cumulative_logprob or 0) - 1e-3


def test_beams_of_several_prompts_are_those_of_each(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=6)
    prompts: list[Any] = [{"prompt": "Kvasir is"}, {"prompt_token_ids": [300, 301]}, "A pod is"]
    together, limited = llm.beam_search(prompts, params), llm.beam_search(prompts, params, concurrency_limit=2)
    assert together == limited == [llm.beam_search([prompt], params)[0] for prompt in prompts]
    with pytest.raises(ValueError, match="beam_width is 12: give at most 10"):
        llm.beam_search(prompts, BeamSearchParams(beam_width=12, max_tokens=6))
    with pytest.raises(ValueError, match="beam_width is 0"):
        BeamSearchParams(beam_width=0, max_tokens=6)


def test_default_parameters_are_those_of_the_model() -> None:
    with LLM("demo://", override_generation_config={"temperature": 0.5, "top_k": 7}, **OPTIONS) as llm:
        params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 7, 16)


@pytest.mark.parametrize("name", ["reward", "sleep", "apply_model"])
def test_a_missing_method_gives_its_reason(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*not"):
        getattr(llm, name)


def test_what_an_llm_was_not_started_with_is_named(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match=r"^profiles are off: start the engine with profiler_config"):
        llm.start_profile()
    with pytest.raises(RuntimeError, match="disable_log_stats=False"):
        llm.get_metrics()
    with pytest.raises(ValueError, match="priority is not used here: start the engines with scheduling_policy"):
        llm.generate("Kvasir", priority=[1])
    with pytest.raises(ValueError, match="2 priorities for 1 prompts"):
        llm.generate("Kvasir", priority=[1, 2])
    with pytest.raises(ValueError, match="tokenization_kwargs: truncation is not supported"):
        llm.generate("Kvasir", tokenization_kwargs={"truncation": True})


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [_Terminal, io.StringIO])
def test_a_terminal_shows_how_far_the_start_is(terminal: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := terminal())
    monkeypatch.setenv("TERM", "xterm")
    LLM("demo://", **OPTIONS).close()
    shown = ["fetching demo://", "importing torch", "loading weights", "warming up"]
    is_terminal = terminal is _Terminal
    assert [part in screen.getvalue() for part in shown] == [is_terminal] * 4


@pytest.mark.parametrize("given", [None, 5, ["demo://"]])
def test_a_model_of_a_wrong_type_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^model is of type"):
        LLM(given)


def test_a_model_may_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        LLM(tmp_path)


@pytest.mark.parametrize("given", [{"temperature": 0}, [{"temperature": 0}], "hot", 5])
def test_parameters_of_a_wrong_type_are_named(llm: LLM, given: Any) -> None:
    with pytest.raises(TypeError, match=r"^sampling_params is of type .*give SamplingParams"):
        llm.generate("Kvasir", given)
    with pytest.raises(TypeError, match=r"^sampling_params is of type .*give SamplingParams"):
        llm.chat(ASKED, given)
