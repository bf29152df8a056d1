import threading
from typing import Any

import pytest
from pydantic import BaseModel

from kvasir import LLM, SamplingParams, StructuredOutputsParams
from kvasir.request.constraint import Grammar, GrammarKind


class Point(BaseModel):
    x: int


def grammar(**fields: Any) -> Grammar:
    return StructuredOutputsParams(**fields).source().grammar()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"json": {"type": "null"}}, Grammar(GrammarKind.JSON_SCHEMA, '{"type":"null"}')),
        ({"json": '{"type": "null"}'}, Grammar(GrammarKind.JSON_SCHEMA, '{"type":"null"}')),
        ({"json_object": True}, Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')),
        (
            {"json_object": True, "disable_any_whitespace": True},
            Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}', any_whitespace=False),
        ),
        ({"regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"grammar": 'root ::= "a"'}, Grammar(GrammarKind.EBNF, 'root ::= "a"')),
        ({"grammar": 'start: "a"'}, Grammar(GrammarKind.LARK, 'start: "a"')),
    ],
)
def test_each_field_is_a_constraint(fields: dict[str, Any], expected: Grammar) -> None:
    assert grammar(**fields) == expected


def test_a_pydantic_model_stands_for_its_schema() -> None:
    assert grammar(json=Point) == grammar(json=Point.model_json_schema())
    assert grammar(choice=["a"]).kind is GrammarKind.LARK
    assert grammar(structural_tag={"format": {"type": "any_text"}}).kind is GrammarKind.LARK


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "json, regex, choice"),
        ({"json_object": False}, "json, regex, choice"),
        ({"json": {}, "regex": "a"}, "structured_outputs.json and structured_outputs.regex"),
        ({"choice": "a"}, "structured_outputs.choice"),
        ({"regex": 5}, "structured_outputs.regex"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
    ],
)
def test_a_wrong_constraint_is_a_value_error(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        StructuredOutputsParams(**fields)


def test_a_schema_that_cannot_be_enforced_is_a_value_error() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"not": {}}))
    with LLM("demo://", kv_cache_memory_bytes="64Mi") as llm, pytest.raises(ValueError, match=r"prompt 0: .*'not'"):
        llm.generate("Hi", params)


def test_an_output_is_one_of_the_choices() -> None:
    choices = ["yes", "no", "ü"]
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(choice=choices), temperature=100.0, seed=1, n=8
    )
    with LLM("demo://", kv_cache_memory_bytes="64Mi") as llm:
        [output] = llm.generate("Hi", params)
    texts = {each.text for each in output.outputs}
    assert len(texts) > 1
    assert texts <= set(choices)


def test_a_step_that_never_gets_its_masks_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits for the threads of an executor when it ends, also if the LLM was not closed."""
    llm = LLM("demo://", max_num_seqs=2, max_model_len=256)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._engine._core._late_masks, "supply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("Kvasir is", SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+")))
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("worker")]
    for thread in workers:
        thread.join(5)
    assert not any(thread.is_alive() for thread in workers)
    llm.close()
