import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvasir.request.params import BOUNDS, MAX_BAD_WORD_TOKENS, BadParameter, SamplingFields, SamplingParams

VOCAB = 50
PLAIN = SamplingParams(max_tokens=5, seed=0)


def with_changes(**changes: Any) -> SamplingParams:
    return msgspec.structs.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("max_tokens", 0, "1 or more"),
        ("seed", 2**63, "64 bits"),
        ("seed", -(2**63) - 1, "64 bits"),
        ("temperature", -0.1, "0 (greedy) or more"),
        ("temperature", 1e7, "up to 1000000"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_k", -1, "0 (all tokens) or more"),
        ("top_k", 2**63, "up to 2**63 - 1"),
        ("min_p", 1.5, "0 to 1"),
        ("presence_penalty", 2.5, "-2 to 2"),
        ("frequency_penalty", -2.5, "-2 to 2"),
        ("repetition_penalty", 0, "0.01 to 100"),
        ("min_tokens", -1, "0 or more"),
        ("min_tokens", 6, "max_tokens, 5, or less"),
        ("logprobs", -1, "0 to 20"),
        ("prompt_logprobs", 21, "0 to 20"),
        ("logit_bias", ((3, 100.5),), "-100 to 100"),
        ("logit_bias", ((3, math.nan),), "-100 to 100"),
        ("logit_bias", ((VOCAB, 1.0),), "0 to 49"),
        ("logit_bias", ((3, 1.0),) * (VOCAB + 1), "at most 50"),
        ("stop_token_ids", (-1,), "0 to 49"),
        ("stop_token_ids", (3,) * 65, "at most 64"),
        ("allowed_token_ids", (3,) * (VOCAB + 1), "at most 50"),
        ("allowed_token_ids", (2**40,), "0 to 49"),
        ("bad_words", ((3,),) * 513, "at most 512"),
        ("bad_words", ((3,), ()), "1 to 1024"),
        ("bad_words", ((3,) * (MAX_BAD_WORD_TOKENS + 1),), "1 to 1024"),
        ("bad_words", ((3, VOCAB),), "0 to 49"),
    ],
)
def test_check_names_the_field_and_the_accepted_values(name: str, value: Any, accepted: str) -> None:
    with pytest.raises(BadParameter) as caught:
        with_changes(**{name: value}).check(VOCAB)
    assert caught.value.name == name
    assert name in str(caught.value)
    assert accepted in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [name for name in BOUNDS if isinstance(getattr(PLAIN, name), float)])
def test_check_refuses_a_number_that_is_not_finite(name: str, value: float) -> None:
    with pytest.raises(BadParameter, match=f"{name} is {value}"):
        with_changes(**{name: value}).check(VOCAB)


@pytest.mark.parametrize("name", BOUNDS)
def test_check_refuses_what_is_beyond_either_end_of_a_range(name: str) -> None:
    for value in (BOUNDS[name].least - 1, BOUNDS[name].most + 1):
        if value != math.inf:
            with pytest.raises(BadParameter, match=f"{name} is {value}"):
                with_changes(**{name: value}).check(VOCAB)


@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "min_tokens"])
def test_check_accepts_both_ends_of_each_range(name: str) -> None:
    for value in (BOUNDS[name].least, BOUNDS[name].most):
        if value != math.inf:
            with_changes(**{name: value}).check(VOCAB)


def test_every_number_has_bounds() -> None:
    numbers = {
        field.name
        for field in msgspec.structs.fields(SamplingParams)
        if isinstance(getattr(PLAIN, field.name), int | float | None)
        and not isinstance(getattr(PLAIN, field.name), bool)
    }
    assert BOUNDS.keys() == numbers


def test_an_http_body_has_the_ranges_of_the_engine() -> None:
    """A range that msgspec enforces in a body is the range that `check` enforces."""
    properties = msgspec.json.schema(SamplingFields)["$defs"]["SamplingFields"]["properties"]
    enforced = {}
    for name, schema in properties.items():
        for each in schema.get("anyOf", [schema]):
            if name in BOUNDS and "minimum" in each:
                enforced[name] = (each["minimum"], each.get("maximum", math.inf))
    del enforced["top_k"]  # -1 stands for 0 in a body
    assert enforced.keys() >= {
        *("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "prompt_logprobs")
    }
    for name, (least, most) in enforced.items():
        assert (BOUNDS[name].least, BOUNDS[name].most) == (least, most)


def test_every_field_of_a_body_is_documented() -> None:
    docs = Path(__file__).parents[3] / "docs"
    listed = {
        name
        for page in ("sampling.md", "api.md")
        for line in (docs / page).read_text().splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    assert listed >= set(SamplingFields.__struct_fields__)


def test_parameters_out_of_range_survive_the_link() -> None:
    """Decoding does not check ranges: a frame that does not decode costs the engine its connection."""
    bad = with_changes(seed=2**63, top_p=1.5, temperature=math.inf, logprobs=-1, max_tokens=0, bad_words=((),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=SamplingParams) == bad
