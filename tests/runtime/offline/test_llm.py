import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvasir
from kvasir import LLM, RequestOutput, SamplingParams
from kvasir.config.options import ConfigError
from kvasir.hub.hub_errors import HubError
from kvasir.hub.source import fetch
from kvasir.worker.step import StepInput, StepOutput

GREEDY = SamplingParams(temperature=0, max_tokens=8)
OPTIONS: dict[str, Any] = {"kv_cache_memory_bytes": "32Mi", "threads": 1}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo://", max_num_seqs=4, max_model_len=512, **OPTIONS) as llm:
        yield llm


def texts(outputs: list[RequestOutput]) -> list[list[str]]:
    return [[choice.text for choice in output.outputs] for output in outputs]


def test_a_batch_larger_than_a_step_keeps_its_order(llm: LLM) -> None:
    prompts = [f"Kvasir {number} is" for number in range(30)]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert len({output.request_id for output in outputs}) == 30
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert texts(outputs) == texts(alone)
    assert all(output.finished and len(output.outputs[0].token_ids) <= 8 for output in outputs)


def test_the_tokenizer_is_the_second_argument() -> None:
    with pytest.raises(HubError, match="tokenizer: /no/such does not exist"):
        LLM("demo://", "/no/such", **OPTIONS)


def test_prompts_wait_until_the_engine_has_room_for_them(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ["Kvasir is " * count for count in range(20, 30)]
    expected = texts(llm.generate(prompts, GREEDY))
    monkeypatch.setattr(llm._engine._core.ingest.budget, "limit", 1200)
    assert texts(llm.generate(prompts, GREEDY)) == expected


def test_a_prompt_is_a_text_or_tokens(llm: LLM) -> None:
    [text] = llm.generate("Kvasir is", GREEDY)
    tokens = text.prompt_token_ids
    prompts: list[Any] = [
        {"prompt": "Kvasir is"},
        {"prompt_token_ids": tokens},
        {"prompt_token_ids": tokens, "prompt": "as given", "multi_modal_data": None},
        tokens,
    ]
    several = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in several] == ["Kvasir is", None, "as given", None]
    assert [output.prompt_token_ids for output in several] == [tokens] * 4
    assert texts(several) == texts([text] * 4)
    assert texts(llm.generate({"prompt_token_ids": tokens}, GREEDY)) == texts([text])
    assert llm.generate([], GREEDY) == []


def test_each_choice_draws_from_a_seed_of_its_own(llm: LLM) -> None:
    sampled = SamplingParams(temperature=2.0, seed=5, n=3, max_tokens=12)
    [output] = llm.generate("Kvasir is", sampled)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    singles = [
        llm.generate("Kvasir is", SamplingParams(temperature=2.0, seed=5 + index, max_tokens=12))[0]
        for index in range(3)
    ]
    assert texts([output]) == [[single.outputs[0].text for single in singles]]
    assert len({choice.text for choice in output.outputs}) == 3


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    short, long = llm.generate(["Kvasir is"] * 2, [SamplingParams(temperature=0, max_tokens=2), GREEDY])
    assert (len(short.outputs[0].token_ids), len(long.outputs[0].token_ids)) == (2, 8)
    assert (short.outputs[0].finish_reason, short.outputs[0].stop_reason) == ("length", None)


def test_log_probabilities_are_those_of_the_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=6, logprobs=2, prompt_logprobs=1)
    [output] = llm.generate("Kvasir is", params)
    [choice] = output.outputs
    assert choice.logprobs is not None
    assert [next(iter(place)) for place in choice.logprobs] == choice.token_ids
    for place in choice.logprobs:
        assert {1, 2} <= {entry.rank for entry in place.values()}
    chosen = [place[token] for place, token in zip(choice.logprobs, choice.token_ids, strict=True)]
    assert "".join(each.decoded_token for each in chosen) == choice.text
    assert choice.cumulative_logprob == pytest.approx(sum(each.logprob for each in chosen))
    assert output.prompt_logprobs is not None
    first, *others = output.prompt_logprobs
    assert first is None
    assert [next(iter(place or {})) for place in others] == output.prompt_token_ids[1:]
    assert llm.generate("Kvasir is", GREEDY)[0].outputs[0].logprobs is None


def test_a_prefix_that_was_computed_is_found_again(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [*range(300, 350)]}
    llm.generate(prompt, GREEDY)  # type: ignore[arg-type]
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 48  # type: ignore[arg-type]


def test_overlapped_steps_give_the_same_answers(llm: LLM) -> None:
    prompts = [f"Kvasir {number} is" for number in range(6)]
    params = SamplingParams(temperature=1.0, seed=7, n=2, max_tokens=20, stop=" is")
    with LLM("demo://", max_num_seqs=4, max_model_len=512, async_scheduling=True, **OPTIONS) as overlapped:
        assert texts(overlapped.generate(prompts, params)) == texts(llm.generate(prompts, params))


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("prompts", "error"),
    [
        ([["Kvasir"]], r"prompt 0: a prompt of type list: give a text, or token ids as"),
        ([1, 2], r"prompt 0: a prompt of type int"),
        (["Kvasir", {"text": "is"}], r"prompt 1: a prompt has no key 'text'"),
        ([{}], r"prompt 0: a prompt needs a text"),
        ([{"prompt": "x", "multi_modal_data": {"image": 1}}], "prompt 0: multi_modal_data is not supported yet"),
        ([{"prompt": 5}], r"prompt 0: a prompt needs a text"),
        ([{"prompt_token_ids": "abc"}], r"prompt 0: prompt_token_ids is not a list of integers"),
        ([{"prompt_token_ids": [1.5]}], r"prompt 0: prompt_token_ids is not a list of integers"),
        ([{"prompt_token_ids": []}], r"prompt 0: the prompt is empty"),
        ([{"prompt_token_ids": [10**6]}], r"prompt 0: prompt: token id 1000000 is out of range"),
        ([{"prompt_token_ids": [5] * 600}], r"prompt 0: .* context length is 512 tokens.* has 600 tokens"),
    ],
)
def test_a_bad_prompt_is_named(llm: LLM, prompts: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"temperature": "hot"}, "temperature: Expected `float"),
        ({"n": 0}, "n: Expected `int` >= 1"),
        ({"max_tokens": 0}, "max_tokens: Expected `int` >= 1"),
        ({"logprobs": 21}, "logprobs is 21: give at most 20"),
        ({"stop": [1]}, r"stop\[0\]|stop\[...\]"),
    ],
)
def test_bad_parameters_are_named_when_they_are_made(params: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SamplingParams(**params)


def test_parameters_that_the_model_cannot_use_are_named(llm: LLM) -> None:
    for params, error in (
        (SamplingParams(top_p=0), "top_p is 0"),
        (SamplingParams(logit_bias={10**6: 1.0}), "logit_bias: token id 1000000"),  # type: ignore[dict-item]
    ):
        with pytest.raises(ValueError, match=error):
            llm.generate("Kvasir", params)
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm.generate("Kvasir", [GREEDY, GREEDY])


def test_options_of_the_model_are_taken() -> None:
    options: dict[str, Any] = {
        "hf_overrides": {"max_position_embeddings": 256},
        "override_generation_config": {"temperature": 2.0},
        "seed": 5,
        "kv_cache_memory_bytes": "16Mi",
        "device": "cpu",
        "threads": 1,
    }
    answers = []
    for _ in range(2):
        with LLM("demo://", **options) as llm:
            answers.append([output.outputs[0].text for output in llm.generate(["Kvasir is"] * 3, use_tqdm=False)])
            with pytest.raises(ValueError, match="256"):
                llm.generate({"prompt_token_ids": [5] * 300})
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 3


def test_empty_lists_may_be_none_as_in_vllm() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None, bad_words=None, logit_bias=None)  # type: ignore[arg-type]
    assert params == SamplingParams()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"quantization": "awq"}, r"quantization awq: .* give int8, int4, fp8 "),
        (
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "external_launcher"},
            "external_launcher has no pipelines",
        ),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "choose mp, or leave it out"),
        ({"max_model_length": 5}, r"LLM has no option max_model_length \(did you mean max_model_len\?\)"),
        ({"block_size": 0}, "block_size: 0 is out of range"),
        ({"block_size": True}, "block_size takes a value"),
        ({"dtype": "int8"}, "dtype: 'int8' is not one of auto, float32"),
        ({"async_scheduling": "yes"}, "async_scheduling: 'yes' is not a boolean"),
        ({"max_model_len": 10**9}, "^max_model_len 1000000000 is more"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        LLM("demo://", **options)


def test_a_bad_conversation_is_named(llm: LLM) -> None:
    for messages, error in (
        ([], "prompt 0: messages: the list is empty"),
        ([{"role": "wizard", "content": "x"}], r"prompt 0: messages\[0\].role: 'wizard' is not a role"),
        ([[{"role": "user", "content": "x"}], [{"role": "user"}]], r"prompt 1: messages\[0\].content is missing"),
    ):
        with pytest.raises(ValueError, match=error):
            llm.chat(messages, GREEDY)


def test_a_bad_chat_template_is_refused_before_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(*_: object) -> None:
        pytest.fail("an engine was started")

    monkeypatch.setattr("kvasir.offline.llm_engine.start_engine", start)
    shutil.copytree(fetch("demo://", weights=False), tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match="is not a Jinja template, line 1"):
        LLM(str(tmp_path))


# ------------------------------------------------------------------------------------------------ life and end


def test_a_call_that_is_interrupted_leaves_an_idle_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    core = llm._engine._core
    step, steps = core.step, 0

    def interrupted() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
        return step()

    expected = texts(llm.generate("Kvasir is", GREEDY))
    with monkeypatch.context() as patch:
        patch.setattr(core, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["Kvasir is"] * 10, SamplingParams(max_tokens=400, ignore_eos=True))
    core.check_idle()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert texts(llm.generate("Kvasir is", GREEDY)) == expected


def test_a_request_that_fails_in_the_engine_ends_the_call(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm._engine._core.ingest, "_max_model_len", 4)
    with pytest.raises(ValueError, match="this engine holds 4"):
        llm.generate(["Kvasir is", "Kvasir is a serving system for large"], GREEDY)
    llm._engine._core.check_idle()


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_an_engine_whose_step_failed_computes_no_other(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of the step are in the prefix cache already, and it may have written none of them."""
    with LLM("demo://", max_num_seqs=4, max_model_len=512, **OPTIONS) as llm:

        def fail(step: StepInput) -> StepOutput:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(llm._engine._core._executor, "submit", fail)
            with pytest.raises(type(error)):
                llm.generate("Kvasir is", GREEDY)
        with pytest.raises(RuntimeError, match="a step of this LLM has failed: create a new one"):
            llm.generate("Kvasir is", GREEDY)


def test_two_threads_do_not_share_an_engine(llm: LLM) -> None:
    with llm._running, pytest.raises(RuntimeError, match="another thread"):
        llm.generate("Kvasir is", GREEDY)


def test_a_closed_llm_has_no_thread_and_answers_nothing() -> None:
    before = set(threading.enumerate())
    with LLM("demo://", max_model_len=256, async_scheduling=True, **OPTIONS) as llm:
        llm.generate("Kvasir is " * 20, GREEDY)
    llm.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("Kvasir is", GREEDY)


def test_importing_kvasir_imports_nothing_of_the_offline_api() -> None:
    script = (
        "import sys, kvasir; heavy = {'torch', 'tokenizers', 'msgspec', 'rich', 'starlette', 'numpy'}; "
        "print(kvasir.__version__, heavy & set(sys.modules)); "
        "kvasir.SamplingParams; print({'torch', 'transformers'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:2] == [f"{kvasir.__version__} set()", "set()"]
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        _ = kvasir.LLMs
