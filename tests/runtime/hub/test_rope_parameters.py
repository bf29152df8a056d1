"""The rotary embedding's settings have one normal form, whichever way a file and --hf-overrides write them."""

import math
from typing import Any

import pytest

from kvasir.hub.hub_errors import HubError
from kvasir.hub.rope_parameters import extended_context, override_rope, rope_parameters

LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OLD: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": LLAMA3}
NEW: dict[str, Any] = {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}


@pytest.mark.parametrize(
    ("values", "normal"),
    [
        ({}, {}),
        ({"rope_theta": 1e6}, {"rope_theta": 1e6}),
        ({"rope_scaling": None, "rope_theta": 1e6}, {"rope_theta": 1e6}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, LINEAR),
        ({"rope_scaling": {"type": "mrope", "rope_type": "linear", "factor": 2.0}}, LINEAR),
        (OLD, LLAMA3 | {"rope_theta": 5e5}),
        (NEW, LLAMA3 | {"rope_theta": 5e5}),
        (NEW | {"rope_theta": 1.0}, LLAMA3 | {"rope_theta": 5e5}),
        (NEW | {"rope_scaling": LINEAR}, LINEAR),
        ({"partial_rotary_factor": 0.5, "rope_scaling": LINEAR}, LINEAR | {"partial_rotary_factor": 0.5}),
    ],
)
def test_a_file_of_any_age_has_one_normal_form(values: dict[str, Any], normal: dict[str, Any]) -> None:
    assert rope_parameters(values) == normal


@pytest.mark.parametrize("file", [OLD, NEW])
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"rope_theta": 1e6}, LLAMA3 | {"rope_theta": 1e6}),
        ({"rope_parameters": {"rope_theta": 1e6}}, LLAMA3 | {"rope_theta": 1e6}),
        ({"rope_scaling": YARN}, YARN | {"rope_theta": 5e5}),
        ({"rope_parameters": YARN}, YARN | {"rope_theta": 5e5}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, LINEAR | {"rope_theta": 5e5}),
        ({"rope_scaling": YARN, "rope_theta": 1e6}, YARN | {"rope_theta": 1e6}),
        ({"rope_scaling": {"factor": 16.0}}, LLAMA3 | {"factor": 16.0, "rope_theta": 5e5}),
        ({"rope_scaling": None}, {"rope_theta": 5e5}),
        ({"rope_parameters": None}, {}),
        ({"rope_theta": None}, LLAMA3),
        ({"partial_rotary_factor": 0.25}, LLAMA3 | {"rope_theta": 5e5, "partial_rotary_factor": 0.25}),
    ],
)
def test_overrides_win_in_either_form(
    file: dict[str, Any], overrides: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert override_rope({"a": 1} | file, overrides) == {"a": 1, "rope_parameters": expected}


GEMMA: dict[str, Any] = {"full_attention": LINEAR | {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}


@pytest.mark.parametrize(
    "file",
    [
        {"rope_parameters": GEMMA},
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
@pytest.mark.parametrize(
    ("overrides", "full", "sliding"),
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}, {}),
        ({"rope_local_base_freq": 3e4}, {}, {"rope_theta": 3e4}),
        ({"rope_scaling": {"factor": 8.0}}, {"factor": 8.0}, {}),
        ({"rope_parameters": {"rope_theta": 5e5}}, {"rope_theta": 5e5}, {}),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3e4}}}, {}, {"rope_theta": 3e4}),
        ({"rope_parameters": {"full_attention": {"factor": 8.0}}}, {"factor": 8.0}, {}),
    ],
)
def test_overrides_of_nested_settings_reach_their_layers(
    file: dict[str, Any], overrides: dict[str, Any], full: dict[str, Any], sliding: dict[str, Any]
) -> None:
    result = override_rope(file, overrides)["rope_parameters"]
    assert result["full_attention"] == GEMMA["full_attention"] | full
    assert result["sliding_attention"] == GEMMA["sliding_attention"] | sliding


def test_scaling_is_removed_from_the_layers_that_have_it() -> None:
    result = override_rope({"rope_parameters": GEMMA}, {"rope_scaling": None})["rope_parameters"]
    assert result == {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}


def test_gemma3_has_nested_settings_even_if_its_file_names_none() -> None:
    result = override_rope({"architectures": ["Gemma3ForCausalLM"]}, {"rope_theta": 5e5, "rope_local_base_freq": 7})
    assert result["rope_parameters"] == {
        "full_attention": {"rope_theta": 5e5},
        "sliding_attention": {"rope_theta": 7},
    }


def test_settings_that_are_no_object_are_refused_by_name() -> None:
    with pytest.raises(HubError, match=r"^rope_scaling is 'yarn', it must be an object"):
        rope_parameters({"rope_scaling": "yarn"})


@pytest.mark.parametrize("value", [None, {}, [], False])
def test_empty_settings_change_nothing(value: Any) -> None:
    assert rope_parameters({"rope_scaling": value, "rope_theta": 5e5}) == {"rope_theta": 5e5}


@pytest.mark.parametrize("factor", [math.inf, math.nan, "4", None, -2.0])
def test_factor_that_is_no_number_extends_nothing(factor: Any) -> None:
    values = {"rope_scaling": {"type": "yarn", "factor": factor, "original_max_position_embeddings": 64}}
    assert extended_context(256, values) == 256
