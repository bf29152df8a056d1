"""Structured output through the whole service: every form of constraint, and grammars that are meant to harm."""

import itertools
import json
import re
import threading
import time
from typing import Any

import httpx
import jsonschema
import pytest

from kvasir import LLM, SamplingParams, StructuredOutputsParams
from service.running import Service

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "ports": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}, "maxItems": 3},
        "kind": {"enum": ["pod", "service", "ünïcode"]},
        "since": {"type": "string", "format": "date"},
    },
    "required": ["name", "ports", "kind", "since"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<thing>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</thing>",
    },
}
QUESTION = [{"role": "user", "content": "Describe a pod."}]
RANDOM = {"temperature": 2.0, "max_tokens": 300}
"""At this temperature the demo model's tokens are hardly related to its training."""


def ask(service: Service, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": QUESTION, "seed": 3} | RANDOM | fields
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"])


def texts(service: Service, **fields: Any) -> list[str]:
    choices = ask(service, **fields)
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * len(choices)
    return [choice["message"]["content"] for choice in choices]


def check(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def test_choices_of_a_schema_validate(service: Service) -> None:
    found = texts(service, response_format=FORMAT, n=3)
    assert len(set(found)) > 1
    for text in found:
        check(text)


def test_json_without_free_whitespace_is_spaced_like_pythons(service: Service) -> None:
    outputs = {"json": SCHEMA, "disable_any_whitespace": True}
    for text in texts(service, structured_outputs=outputs, n=3):
        assert text == json.dumps(json.loads(text), ensure_ascii=False)


def test_a_stream_gives_the_text_of_the_plain_answer(service: Service) -> None:
    fields = {"response_format": FORMAT, "messages": QUESTION, "seed": 3, **RANDOM}
    [whole] = texts(service, response_format=FORMAT)
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=fields | {"stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == whole
    check(whole)


def test_a_cut_answer_says_length_and_is_a_beginning(service: Service) -> None:
    [whole] = texts(service, response_format=FORMAT)
    [cut] = ask(service, response_format=FORMAT, max_tokens=8)
    assert cut["finish_reason"] == "length"
    # Where the cut falls within a character, its bytes so far are one U+FFFD.
    assert whole.startswith(cut["message"]["content"].removesuffix("\ufffd"))


def test_any_json_object_is_an_object(service: Service) -> None:
    [choice] = ask(service, response_format={"type": "json_object"})
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[A-Z]{2}-[0-9]{3}"}}, "[A-Z]{2}-[0-9]{3}"),
        ({"guided_regex": "(ha){1,4}!"}, "(ha){1,4}!"),
        ({"structured_outputs": {"choice": ['say "yes"', "nö", "a\nb"]}}, 'say "yes"|nö|a\nb'),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"grammar": 'root ::= "x" pair\npair ::= "=" [0-9] | "=" pair "="'}}, "x=+[0-9]=*"),
        ({"guided_grammar": 'start: "x" pair\npair: "=" /[0-9]/ | "=" pair "="'}, "x=+[0-9]=*"),
    ],
)
def test_texts_of_other_grammars_match(service: Service, fields: dict[str, Any], pattern: str) -> None:
    for text in texts(service, n=3, **fields):
        assert re.fullmatch(pattern, text)


def test_the_text_of_a_structural_tag_is_tagged(service: Service) -> None:
    for text in texts(service, response_format=TAG, n=2):
        check(text.removeprefix("<thing>").removesuffix("</thing>"))


def test_a_stop_string_ends_a_constrained_text_early(service: Service) -> None:
    [choice] = ask(service, response_format=FORMAT, stop=['"ports"'])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", '"ports"')


@pytest.mark.parametrize("keyword", ["not", "if", "propertyNames"])
def test_a_keyword_without_support_is_refused_by_name(service: Service, keyword: str) -> None:
    body = {"prompt": "Hi", "guided_json": {"type": "object", keyword: {}}}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 400
    assert f"'{keyword}'" in answer.json()["error"]["message"]


def optional(levels: int) -> dict[str, Any]:
    inner = optional(levels - 1) if levels else {"type": "string"}
    return {"type": "object", "properties": {f"p{number}": inner for number in range(10)}}


BOMBS: dict[str, dict[str, Any]] = {
    "minItems": {"guided_json": {"type": "array", "items": {}, "minItems": 10**9}},
    "maxItems": {"guided_json": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}},
    "nested optional properties": {"guided_json": optional(2)},
    "20,000 values": {"guided_json": {"enum": [f"{number}" for number in range(20_000)]}},
    "20,000 choices": {"guided_choice": [f"value {number}" for number in range(20_000)]},
    "an exponential regex": {"guided_regex": "((a{1,100}){1,100}){1,100}"},
    "an ambiguous regex": {"guided_regex": "(a*)*(a|aa)*(.*a){18}b"},
    "left recursion": {"guided_grammar": 'root ::= root root | root "a" | ""'},
    "a megabyte": {"guided_json": {"properties": {f"p{number}": {"type": "string"} for number in range(35_000)}}},
    "recursion": {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}},
    "endless recursion": {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
}


def test_bombs_are_answered_next_to_a_stream(service: Service) -> None:
    times: list[float] = []
    done = threading.Event()

    def read() -> None:
        body = {"prompt": "Kvasir is", "max_tokens": 200, "stream": True, "ignore_eos": True}
        while not done.is_set():
            with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as stream:
                for line in stream.iter_lines():
                    if line and not done.is_set():
                        times.append(time.perf_counter())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for name, fields in BOMBS.items():
            body = {"prompt": "Hi", "max_tokens": 3} | fields
            begun = time.perf_counter()
            answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
            took = time.perf_counter() - begun
            print(f"{name}: {answer.status_code} in {took:.2f} s: {answer.text[:120]}")
            assert answer.status_code in (200, 400), (name, answer.text)
    finally:
        done.set()
        reader.join()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    print(f"{len(gaps)} tokens of the stream, at most {max(gaps):.3f} s apart")
    assert max(gaps) < 10


def test_offline_outputs_are_those_of_the_service(service: Service) -> None:
    fields: dict[str, Any] = {"temperature": 1.5, "seed": 5, "max_tokens": 200}
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA), **fields)
    with LLM("demo://", kv_cache_memory_bytes="64Mi") as llm:
        [output] = llm.generate("Kvasir is", params)
    body = {"prompt": "Kvasir is", "structured_outputs": {"json": SCHEMA}, **fields}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).json()
    check(output.outputs[0].text)
    assert output.outputs[0].text == answer["choices"][0]["text"]
