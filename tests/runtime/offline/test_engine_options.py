"""The options of `LLM`: vLLM's get the verdicts of the command line, in the names of Python."""

import argparse
import logging
from typing import Any

import pytest

from kvasir.config.options import ConfigError
from kvasir.config.vllm.given_options import vllm_options
from kvasir.config.vllm.verdicts import IGNORED
from kvasir.offline import EngineArgs, FlexibleArgumentParser
from kvasir.offline.engine_options import LLMOptions, in_python, python_names, read_options


def options(**given: Any) -> LLMOptions:
    return read_options("demo://", given)


@pytest.mark.parametrize("flag", IGNORED)
def test_an_option_that_serve_ignores_is_a_line_in_the_log(flag: str, caplog: pytest.LogCaptureFixture) -> None:
    name = flag[2:].replace("-", "_")
    assert options(**{name: 4}) == options()
    [line] = caplog.messages
    assert line == f"LLM: {name}=4 has no effect: {in_python(IGNORED[flag])}"
    caplog.clear()
    assert options(**{name: None}) == options(**{name: False}) == options()
    assert not caplog.messages


def test_every_option_of_vllm_is_known_by_its_python_name() -> None:
    for flag in vllm_options():
        name = flag[2:].replace("-", "_")
        options(**{name: None})
        message = ""
        try:
            options(**{name: "1"})
        except ConfigError as error:
            message = str(error)
        assert "has no option" not in message, flag


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"device_memory_utilization": 0.5}, {"gpu_memory_utilization": 0.5}),
        ({"max_num_queued_tokens": 10}, {"max_queued_tokens": 10}),
        ({"long_prefill_token_threshold": 0, "worker_cls": "auto", "worker_extension_cls": ""}, {}),
        ({"quantization": None, "enable_lora": False, "cpu_offload_gb": 0.0, "task": "auto"}, {}),
        ({"data_parallel_size": 1, "hf_token": True, "max_logprobs": 20, "tokenizer_mode": "auto"}, {}),
        ({"dtype": "half"}, {"dtype": "torch.float16"}),
        ({"hf_overrides": {"rope_theta": 1}}, {"hf_overrides": '{"rope_theta": 1}'}),
        ({"compilation_config": 3}, {}),
        ({"speculative_config": {}, "additional_config": {}, "max_seq_len_to_capture": 8192}, {}),
        ({"speculative_config": None, "use_v2_block_manager": True}, {}),
        ({"speculative_config": {"method": "ngram"}}, {"speculative_config": '{"method": "ngram"}'}),
        ({"spec_method": "ngram", "spec_tokens": None}, {"speculative_config": {"method": "ngram"}}),
        (
            {"speculative_config": '{"method": "suffix"}', "spec_tokens": 3},
            {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
        ),
        (
            {"speculative_config": {"method": "suffix"}, "spec_tokens": 3},
            {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
        ),
    ],
)
def test_values_are_read_as_vllm_reads_them(given: dict[str, Any], same: dict[str, Any]) -> None:
    assert options(**given) == options(**same)


def test_a_revision_becomes_part_of_a_model_of_the_hub() -> None:
    config = read_options("org/name", {"revision": "v1", "tokenizer": "org/other", "tokenizer_revision": "v2"})
    assert (config.engine.model.source, config.engine.model.tokenizer) == ("org/name@v1", "org/other@v2")
    assert read_options("./name", {"revision": "v1"}).engine.model.source == "./name"


def test_metrics_are_on_if_their_log_is() -> None:
    assert [options(**given).has_metrics for given in ({}, {"disable_log_stats": True})] == [False, False]
    assert options(disable_log_stats=False).has_metrics


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_model_length": 5}, "LLM has no option max_model_length (did you mean max_model_len?)"),
        ({"swap_spaces": 5}, "LLM has no option swap_spaces (did you mean swap_space? Here: has no effect: "),
        ({"cpu_offload_gb": 4}, "use a smaller model, or a smaller dtype"),
        ({"max_num_partial_prefills": 2}, "use long_prefill_token_threshold"),
        ({"hf_token": "secret"}, "LLM: hf_token is not an argument: set the variable HF_TOKEN"),
        ({"hf_overrides": len}, "LLM: hf_overrides is a function"),
        ({"hf_overrides": {"a": object()}}, "hf_overrides: Object of type object is not JSON"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 4}, "max_num_batched_tokens 4 is below max_num_seqs 8"),
    ],
)
def test_a_wrong_option_is_named_as_in_python(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised, python_names():
        options(**given)
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_secret_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    options(api_key="secret")
    assert "secret" not in caplog.text
    assert "api_key" in caplog.text


def test_arguments_of_a_program_are_those_that_were_given(caplog: pytest.LogCaptureFixture) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--own", default=3)
    with caplog.at_level(logging.WARNING):
        args = parser.parse_args(["--model", "org/name", "-tp", "2", "--swap_space", "4", "--no-enable-dbo"])
    assert ["--swap-space 4 has no effect" in line for line in caplog.messages] == [True]
    assert vars(EngineArgs.from_cli_args(args)) == {"model": "org/name", "tensor_parallel_size": 2}
    assert args.own == 3
    plain = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert vars(EngineArgs.from_cli_args(plain.parse_args([]))) == {"model": "demo://"}
