import pytest

from kvasir.config.options import ConfigError
from kvasir.config.speculation import (
    CPU_STEP_ROWS,
    Speculation,
    fields_without_effect,
    read_speculative_config,
)


def read(text: str) -> Speculation:
    config = read_speculative_config(text)
    assert config is not None
    return config.resolved(on_cpu=True)


def test_speculative_config_has_defaults_for_a_method() -> None:
    assert read('{"method": "ngram"}') == Speculation("ngram", 5, CPU_STEP_ROWS, 5, 5, CPU_STEP_ROWS // 4)
    assert read('{"method": "suffix"}').num_speculative_tokens == 24
    assert read_speculative_config("{}") is None


@pytest.mark.parametrize(
    "text",
    [
        '{"method": "[ngram]", "num_speculative_tokens": 3}',
        '{"model": "[ngram]", "num_speculative_tokens": 3}',
        '{"method": "ngram_gpu", "num_speculative_tokens": 3, "model": null}',
    ],
)
def test_speculative_config_takes_older_names_of_ngram(text: str) -> None:
    assert read(text) == Speculation("ngram", 3, CPU_STEP_ROWS, 5, 5, CPU_STEP_ROWS // 4)


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        ('"prompt_lookup_max": 4', (4, 4)),
        ('"prompt_lookup_min": 2', (2, 2)),
        ('"prompt_lookup_min": 2, "prompt_lookup_max": 4', (2, 4)),
    ],
)
def test_speculative_config_fills_in_lookup_lengths(fields: str, lengths: tuple[int, int]) -> None:
    speculation = read('{"method": "ngram", ' + fields + "}")
    assert (speculation.prompt_lookup_min, speculation.prompt_lookup_max) == lengths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"method": "eagle3", "model": "org/head"}', "the method eagle3 is not supported yet: use"),
        ('{"method": "mtp"}', "the method mtp is not supported yet: use"),
        (
            '{"model": "org/small", "num_speculative_tokens": 3}',
            r"draft models \(org/small\) are not supported yet",
        ),
        ('{"num_speculative_tokens": 3}', "needs a method: use"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens is 0: give a whole number from 1 to 128"),
        ('{"num_speculative_tokens": "3"}', 'num_speculative_tokens is "3": give a whole number from 1 to 128'),
        ('{"disable_by_batch_size": -1}', "disable_by_batch_size is -1: give a whole number of 1 or more"),
        ('{"suffix_decoding_min_token_prob": null}', "prob is null: give a number from 0 to 1"),
        ('{"method": 3}', "method is 3: give a text"),
        (
            '{"method": "ngram", "promt_lookup_max": 3}',
            "no field 'promt_lookup_max'.*did you mean 'prompt_lookup_max'",
        ),
        ('{"method": "ngram", "words": 3}', "no field 'words'.*there are method"),
        ('{"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}', "is above prompt_lookup_max 3"),
    ],
)
def test_speculative_config_rejects_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read_speculative_config(text)
    assert "\n" not in str(raised.value)


def test_speculative_config_names_fields_without_effect() -> None:
    text = '{"method": "ngram", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 3}'
    assert read(text).num_speculative_tokens == 3
    assert fields_without_effect(text) == ["draft_tensor_parallel_size"]
    assert fields_without_effect('{"method": "ngram", "model": "org/small"}') == ["model"]
    assert fields_without_effect('{"method": "ngram", "model": null}') == []
    assert fields_without_effect('{"model": "[ngram]"}') == []
