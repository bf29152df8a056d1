import asyncio
import json
import time
from typing import Any

import pytest

from kvasir.client.input.grammar_source import MAX_CHOICES
from kvasir.link.protocol import RefusalKind
from kvasir.request.constraint import Grammar, GrammarKind
from runtime.frontend.harness import Frontend
from runtime.frontend.test_streaming import CHAT, COMPLETIONS, QUESTION, events_of

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
JSON = Grammar(GrammarKind.JSON_SCHEMA, TEXT)
ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
LARK = 'start: "a" | "b"'
EBNF = 'root ::= "a" | "b"'
FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "schema": SCHEMA, "strict": True}}
LOOSE = {"type": "json_schema", "json_schema": {"name": "point", "schema": SCHEMA, "strict": False}}

FIELDS: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
    ({"response_format": FORMAT}, JSON),
    ({"response_format": LOOSE}, JSON),
    (
        {"response_format": FORMAT, "structured_outputs": {"disable_any_whitespace": True}},
        Grammar(GrammarKind.JSON_SCHEMA, TEXT, any_whitespace=False),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"json": TEXT, "regex": None}}, JSON),
    ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
    ({"structured_outputs": {"regex": "a+"}}, Grammar(GrammarKind.REGEX, "a+")),
    ({"structured_outputs": {"grammar": LARK}}, Grammar(GrammarKind.LARK, LARK)),
    ({"structured_outputs": {"grammar": EBNF}}, Grammar(GrammarKind.EBNF, EBNF)),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_json": TEXT, "guided_decoding_backend": "xgrammar"}, JSON),
    ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
    ({"guided_choice": []}, None),
    ({"guided_grammar": EBNF}, Grammar(GrammarKind.EBNF, EBNF)),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
        Grammar(GrammarKind.JSON_SCHEMA, TEXT, whitespace_pattern=" ?"),
    ),
    ({}, None),
]


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": QUESTION}
    return asked | {"max_tokens": 20} | fields


async def refusal(frontend: Frontend, body: dict[str, Any], path: str = COMPLETIONS) -> tuple[str, str]:
    """Return the field and the message of the 400 for this body, which no engine gets."""
    async with frontend.http() as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert frontend.engine.seen.requests == []
    error = answer.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_engine_gets_the_constraint_of_each_field(frontend: Frontend, path: str) -> None:
    async with frontend.http() as client:
        for fields, _ in FIELDS:
            answer = await client.post(path, json=body_for(path, **fields))
            assert answer.status_code == 200, (fields, answer.text)
    received = [request.constraint for request in frontend.engine.seen.requests]
    assert [each and each.grammar for each in received] == [expected for _, expected in FIELDS]


@pytest.mark.parametrize("field", ["structured_outputs", "guided_choice"])
async def test_choices_become_one_grammar_for_all(frontend: Frontend, field: str) -> None:
    choices = ["yes", 'n"o', "ä"]
    fields = {field: {"choice": choices} if field == "structured_outputs" else choices}
    async with frontend.http() as client:
        answer = await client.post(COMPLETIONS, json=body_for(COMPLETIONS, n=3, prompt=["Hi", "Ho"], **fields))
    assert answer.status_code == 200
    received = frontend.engine.seen.requests
    assert len(received) == 6
    assert len({request.constraint for request in received}) == 1
    grammar = received[0].constraint.grammar if received[0].constraint else None
    assert grammar is not None
    assert grammar.kind is GrammarKind.LARK
    assert r'"n\"o"' in grammar.text


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True},
        {"n": 2, "best_of": 3},
        {"prompt_logprobs": 1},
        {"logprobs": 1},
        {"stop": ["}"], "min_tokens": 2, "ignore_eos": True},
        {"logit_bias": {"5": 1.0}, "bad_words": ["bad"]},
    ],
)
async def test_other_fields_go_together_with_a_constraint(frontend: Frontend, fields: dict[str, Any]) -> None:
    async with frontend.http() as client:
        answer = await client.post(COMPLETIONS, json=body_for(COMPLETIONS, response_format=FORMAT, **fields))
    assert answer.status_code == 200, answer.text
    assert all(request.constraint is not None for request in frontend.engine.seen.requests)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stream_has_its_constraint(frontend: Frontend, path: str) -> None:
    await events_of(frontend, path, **body_for(path, response_format=FORMAT))
    [request] = frontend.engine.seen.requests
    assert request.constraint is not None
    assert request.constraint.grammar == JSON


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"response_format": FORMAT, "guided_regex": "a"}, "guided_regex", "response_format"),
        ({"guided_json": SCHEMA, "guided_choice": ["a"]}, "guided_choice", "guided_json"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "response_format",
        ),
        (
            {"structured_outputs": {"json": {}, "choice": ["a"]}},
            "structured_outputs.choice",
            "structured_outputs.json",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "json, regex, choice"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "json, regex, choice"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs", "json, regex, choice"),
        ({"structured_outputs": {"json": {}, "schema": {}}}, "structured_outputs.schema", "extra"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "string"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "array"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "JSON"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "format"),
        ({"guided_choice": ["x"] * (MAX_CHOICES + 1)}, "guided_choice", str(MAX_CHOICES)),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "JSON"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            "disable_any_whitespace",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}},
            "response_format.json_schema.name",
            "missing",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "format"),
        ({"response_format": FORMAT, "use_beam_search": True}, "response_format", "use_beam_search"),
        ({"guided_choice": ["a"], "use_beam_search": True}, "guided_choice", "use_beam_search"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_what_cannot_be_enforced_is_refused_by_field(
    frontend: Frontend, path: str, fields: dict[str, Any], param: str, named: str
) -> None:
    found, message = await refusal(frontend, body_for(path, **fields), path)
    assert (found, named in message) == (param, True), message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "response_format",
        ),
        ({"structured_outputs": {"json": {"items": {"not": {}}}}}, "structured_outputs.json"),
        ({"guided_json": '{"not":{}}'}, "guided_json"),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<a>", "schema": {"not": {}}, "end": "</a>"}],
                    "triggers": ["<"],
                }
            },
            "response_format",
        ),
    ],
)
async def test_a_keyword_without_support_is_named(frontend: Frontend, fields: dict[str, Any], param: str) -> None:
    found, message = await refusal(frontend, body_for(COMPLETIONS, **fields))
    assert found == param
    assert "'not'" in message


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


PROPERTIES = [f'"p{number}":{{"type":"string"}}' for number in range(350_000)]
BOMBS = {
    "10 MB of properties": f'{{"properties":{{{",".join(PROPERTIES)}}}}}',
    "1 MB of properties": f'{{"properties":{{{",".join(PROPERTIES[:40_000])}}}}}',
    "10 MB of text": f'{{"title":"{"x" * 10_000_000}"}}',
    "1 MB of enum": f'{{"enum":{list(range(120_000))}}}',
    "depth 100,000": nested(100_000),
    "depth 1,000": nested(1_000),
    "depth 250": nested(250),
    "a million choices": json.dumps(["a"] * 999_000),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("quoted", [False, True])
async def test_a_bomb_is_refused_while_a_stream_runs(frontend: Frontend, name: str, quoted: bool) -> None:
    value, field = BOMBS[name], "guided_choice" if "choices" in name else "guided_json"
    body = f'{{"prompt":"Hi","{field}":{json.dumps(value) if quoted else value}}}'
    worst, done = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal worst
        while not done.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - before)

    async with frontend.http() as client:
        watcher, begun = asyncio.create_task(watch()), time.perf_counter()
        answer = await client.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
        took = time.perf_counter() - begun
        done.set()
        await watcher
    print(f"{name}, quoted {quoted}: {answer.status_code} in {took:.3f} s, event loop held {worst:.3f} s")
    assert 400 <= answer.status_code < 500
    assert worst < 2  # 0.25 s for a million strings, when other tests run next to it
    assert frontend.engine.seen.requests == []


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("n", "stream"), [(1, False), (2, False), (1, True)])
async def test_a_refusal_of_the_engine_names_the_field(frontend: Frontend, path: str, n: int, stream: bool) -> None:
    frontend.engine.script.error = "the grammar cannot be compiled: unknown name"
    frontend.engine.script.refusal = RefusalKind.INVALID
    frontend.engine.script.answer = []
    async with frontend.http() as client:
        answer = await client.post(path, json=body_for(path, guided_grammar=LARK, n=n, stream=stream))
        plain = await client.post(path, json=body_for(path))
    assert answer.status_code == plain.status_code == 400
    assert answer.json()["error"]["param"] == "guided_grammar"
    assert answer.json()["error"]["message"] == f"guided_grammar: {frontend.engine.script.error}"
    assert plain.json()["error"]["param"] is None
