import json
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.chat_settings import ChatConfig
from kvasir.config.options import ConfigError
from kvasir.frontend.endpoints import output_plan
from kvasir.link.protocol import AddRequest
from runtime.frontend.endpoints.description.test_openapi import check_answer, description
from runtime.frontend.harness import ANSWER, MODEL, Frontend, running_frontend
from runtime.frontend.talking import (
    ARGUMENTS,
    CALL,
    NODES,
    PODS,
    QUESTION,
    SECOND_CALL,
    TEMPLATE,
    TOOLS,
    answer_of,
    deltas_of,
    error_of,
    prompt_text,
    says,
    talking_frontend,
    tokens_of,
)
from runtime.frontend.test_streaming import CHAT, events_of

PLUG_IN = """
from kvasir.frontend.parsers.formats.descriptions import Body, Layout, ReasoningFormat, ToolFormat

SAMPLE = 'CALL{"name": "f", "arguments": {"a": 1}}END'
LAYOUT = Layout(Body.JSON_OBJECT)
TOOL_FORMATS = [ToolFormat("mine", layouts=(LAYOUT,), openings=("CALL",), closing="END", sample=SAMPLE)]
REASONING_FORMATS = [ReasoningFormat("mine", starts=("{{",), ends=("}}",))]
"""
NAMED = {"type": "function", "function": {"name": "pods"}}
FUNCTIONS = [tool["function"] for tool in TOOLS]


@pytest.fixture
async def talking() -> AsyncIterator[Frontend]:
    async with talking_frontend() as frontend:
        yield frontend


# ------------------------------------------------------------------------------------------------ the whole answer


async def test_a_call_is_in_the_message_and_not_in_its_content(talking: Frontend) -> None:
    choice = (await answer_of(talking, tools=TOOLS))["choices"][0]
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert re.fullmatch(r"call_[A-Za-z0-9]{24}", call["id"])
    assert (call["type"], call["function"]["name"]) == ("function", "pods")
    assert json.loads(call["function"]["arguments"]) == {"namespace": "web"}
    assert choice["finish_reason"] == "tool_calls"
    await talking.idle()


async def test_text_before_a_call_is_the_content(talking: Frontend) -> None:
    says(talking, f"I count.\n{CALL}")
    message = (await answer_of(talking, tools=TOOLS))["choices"][0]["message"]
    assert message["content"].strip() == "I count."
    assert len(message["tool_calls"]) == 1


async def test_answer_without_a_call_is_as_without_tools(talking: Frontend) -> None:
    says(talking, ANSWER)
    with_tools, without = [
        (await answer_of(talking, **fields))["choices"] for fields in ({"tools": TOOLS}, {"messages": QUESTION})
    ]
    assert with_tools == without
    assert (without[0]["message"]["content"], without[0]["finish_reason"]) == (ANSWER, "stop")


async def test_several_calls_have_ids_of_their_own(talking: Frontend) -> None:
    says(talking, f"{CALL}\n{SECOND_CALL}")
    calls = (await answer_of(talking, tools=TOOLS))["choices"][0]["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "pods", "arguments": ARGUMENTS},
        {"name": "nodes", "arguments": "{}"},
    ]
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_one_call_is_left_if_they_must_not_be_parallel(talking: Frontend, stream: bool) -> None:
    says(talking, f"{CALL}\n{SECOND_CALL}")
    body = {"tools": TOOLS, "parallel_tool_calls": False}
    if stream:
        called = [call for delta in await deltas_of(talking, **body) for call in delta.get("tool_calls", ())]
        assert {call["index"] for call in called} == {0}
        assert "".join(call["function"]["arguments"] for call in called) == ARGUMENTS
    else:
        assert len((await answer_of(talking, **body))["choices"][0]["message"]["tool_calls"]) == 1


async def test_a_call_that_is_cut_off_says_so(talking: Frontend) -> None:
    written = '<tool_call>\n{"name": "pods", "arguments": {"name'
    talking.engine.script.answer = tokens_of(written) + tokens_of("space")
    choice = (await answer_of(talking, tools=TOOLS, max_tokens=len(tokens_of(written))))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"name'


async def test_a_call_that_a_stop_string_cuts_is_content(talking: Frontend) -> None:
    choice = (await answer_of(talking, tools=TOOLS, stop="web"))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": CALL.partition("web")[0], "refusal": None}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "web")


async def test_a_stop_string_ends_an_answer_with_calls(talking: Frontend) -> None:
    says(talking, f"{CALL}\nDone and more")
    choice = (await answer_of(talking, tools=TOOLS, stop="Done"))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", "Done")
    assert len(choice["message"]["tool_calls"]) == 1


async def test_each_choice_has_a_parser_of_its_own(talking: Frontend) -> None:
    talking.engine.script.by_seed = {7: tokens_of(CALL), 8: tokens_of(ANSWER), 9: tokens_of(SECOND_CALL)}
    answer = await answer_of(talking, tools=TOOLS, n=3, seed=7)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop", "tool_calls"]
    names = [
        [call["function"]["name"] for call in each["message"].get("tool_calls", ())] for each in answer["choices"]
    ]
    assert names == [["pods"], [], ["nodes"]]
    events = await events_of(talking, CHAT, messages=QUESTION, tools=TOOLS, n=3, seed=7)
    called: list[str] = ["", "", ""]
    for choice in (choice for event in events for choice in event["choices"]):
        for call in choice["delta"].get("tool_calls", ()):
            called[choice["index"]] += call["function"].get("name", "")
    assert called == ["pods", "", "nodes"]


async def test_echoed_text_is_content_before_calls(talking: Frontend) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Well: "}]
    body = {"messages": messages, "tools": TOOLS, "echo": True, "continue_final_message": True}
    message = (await answer_of(talking, **body))["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("Well: ", 1)
    assert "".join(delta.get("content") or "" for delta in await deltas_of(talking, **body)) == "Well: "


# ------------------------------------------------------------------------------------------------ choices


@pytest.mark.parametrize(
    ("choice", "reason"), [("auto", "tool_calls"), ("required", "tool_calls"), (NAMED, "stop")]
)
async def test_the_finish_reason_is_openais(talking: Frontend, choice: Any, reason: str) -> None:
    body = {"tools": TOOLS, "tool_choice": choice}
    assert (await answer_of(talking, **body))["choices"][0]["finish_reason"] == reason
    events = await events_of(talking, CHAT, messages=QUESTION, **body)
    assert events[-1]["choices"][0]["finish_reason"] == reason


async def test_without_a_call_allowed_calls_are_dropped(talking: Frontend) -> None:
    says(talking, f"It runs.\n{CALL}")
    choice = (await answer_of(talking, tools=TOOLS, tool_choice="none"))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "It runs.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert '"name": "pods"' in prompt_text(talking)


async def test_tools_that_must_not_be_called_can_be_hidden() -> None:
    async with talking_frontend(exclude_tools_when_tool_choice_none=True) as frontend:
        for choice, shown in (("none", False), ("auto", True)):
            await answer_of(frontend, tools=TOOLS, tool_choice=choice)
            assert ('"name": "pods"' in prompt_text(frontend)) == shown


async def test_the_template_gets_all_tools_whatever_the_choice(talking: Frontend) -> None:
    whole = json.dumps([PODS, {**NODES, "function": {**NODES["function"], "description": ""}}])[:-3]
    for choice in ("auto", NAMED):
        await answer_of(talking, tools=TOOLS, tool_choice=choice)
        assert prompt_text(talking).startswith(f"<|system|>{whole}")


async def test_tokenize_counts_the_tools_of_a_chat(talking: Frontend) -> None:
    usage = (await answer_of(talking, tools=TOOLS))["usage"]
    async with talking.http() as client:
        counted = await client.post("/tokenize", json={"messages": QUESTION, "tools": TOOLS})
    assert counted.json()["count"] == usage["prompt_tokens"]


async def test_a_choice_becomes_a_constraint_of_the_engine(talking: Frontend) -> None:
    def seen() -> AddRequest:
        return talking.engine.seen.requests[-1]

    await answer_of(talking, tools=TOOLS)
    assert seen().constraint is None
    await answer_of(talking, tools=TOOLS, tool_choice=NAMED)
    constraint = seen().constraint
    assert constraint is not None
    assert constraint.grammar is not None
    assert "pods" in constraint.grammar.text
    assert "nodes" not in constraint.grammar.text


async def test_a_history_with_calls_reaches_the_template(talking: Frontend) -> None:
    says(talking, "3 pods.")
    call = {"id": "call_1", "type": "function", "function": {"name": "pods", "arguments": ARGUMENTS}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    answer = await answer_of(talking, messages=messages, tools=TOOLS)
    assert answer["choices"][0]["message"]["content"] == "3 pods."
    assert '<tool_call>\n{"name": "pods", "arguments": {"namespace": "web"}}\n</tool_call>' in prompt_text(talking)


# ------------------------------------------------------------------------------------------------ the older form


async def test_functions_are_answered_with_a_function_call(talking: Frontend) -> None:
    choice = (await answer_of(talking, functions=FUNCTIONS))["choices"][0]
    called = {"name": "pods", "arguments": ARGUMENTS}
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None, "function_call": called}
    assert choice["finish_reason"] == "function_call"
    deltas = [
        delta["function_call"]
        for delta in await deltas_of(talking, functions=FUNCTIONS)
        if "function_call" in delta
    ]
    assert deltas[0] == {"name": "pods", "arguments": ""}
    assert "".join(delta["arguments"] for delta in deltas) == ARGUMENTS


# ------------------------------------------------------------------------------------------------ special tokens


async def test_special_tokens_of_no_mark_are_not_in_the_text(talking: Frontend) -> None:
    says(talking, f"I <|user|>count.<|begin|>{CALL}")
    message = (await answer_of(talking, tools=TOOLS))["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("I count.", 1)
    message = (await answer_of(talking, tools=TOOLS, skip_special_tokens=False))["choices"][0]["message"]
    assert message["content"] == "I <|user|>count.<|begin|>"


async def test_special_tokens_of_a_mark_are_for_the_parser_only() -> None:
    """mistral's marks are special tokens of its models; the demo model has none of them, so harmony shows it."""
    async with talking_frontend(
        "<|channel|>final<|message|>Hello.<|end|>", tool_call_parser="openai", reasoning_parser="openai_gptoss"
    ) as frontend:
        message = (await answer_of(frontend))["choices"][0]["message"]
    assert message["content"] == "Hello."


# ------------------------------------------------------------------------------------------------ refusals


async def test_tools_are_refused_if_the_format_of_calls_is_unknown() -> None:
    async with talking_frontend("Hello.", tool_call_parser="none") as frontend:
        param, message = await error_of(frontend, tools=TOOLS)
        assert param == "tools"
        assert "start the server with --tool-call-parser" in message
        param, message = await error_of(frontend, functions=FUNCTIONS)
        assert param == "functions"
        answer = await answer_of(frontend, tools=TOOLS, tool_choice="none")
    assert answer["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize("inline_cost", [output_plan.INLINE_COST, 1])
async def test_schema_that_cannot_be_enforced_names_its_tool(
    talking: Frontend, inline_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is checked on the event loop or in a thread."""
    monkeypatch.setattr(output_plan, "INLINE_COST", inline_cost)
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    wrong = {"type": "function", "function": {"name": "wrong", "parameters": schema}}
    param, message = await error_of(talking, tools=[PODS, wrong], tool_choice="required")
    assert param == "tools[1]"
    assert "the parameters of 'wrong'" in message
    assert "uniqueItems" in message
    for choice in ("auto", NAMED):
        await answer_of(talking, tools=[PODS, wrong], tool_choice=choice)


async def test_a_long_pattern_of_a_tool_is_checked_in_a_thread(
    talking: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_plan, "INLINE_COST", 400)
    threads: list[threading.Thread] = []
    monkeypatch.setattr(output_plan, "check_grammar", lambda _: threads.append(threading.current_thread()))
    for length in (10, 400):
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "a" * length}}}
        tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
        await answer_of(talking, tools=[tool], tool_choice="required")
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_tools_are_refused_with_beam_search(talking: Frontend) -> None:
    param, message = await error_of(talking, tools=TOOLS, use_beam_search=True)
    assert param == "tools"
    assert "not supported with use_beam_search" in message


async def test_ids_of_calls_are_those_that_mistrals_templates_take() -> None:
    text = '[TOOL_CALLS][{"name": "pods", "arguments": {"namespace": "web"}}]'
    async with talking_frontend(text, tool_call_parser="mistral") as frontend:
        (call,) = (await answer_of(frontend, tools=TOOLS))["choices"][0]["message"]["tool_calls"]
    assert re.fullmatch(r"[A-Za-z0-9]{9}", call["id"])


async def test_the_format_is_found_in_the_chat_template() -> None:
    template = TEMPLATE.replace("{% if tools %}", '{# {"name": ..., "arguments": ...} #}{% if tools %}')
    async with running_frontend(chat=ChatConfig(chat_template=template)) as frontend:
        assert frontend.service.parsers.tool_format == "hermes"


@pytest.mark.parametrize("option", ["tool_parser_plugin", "reasoning_parser_plugin"])
async def test_formats_of_a_plug_in_are_used(option: str, tmp_path: Path) -> None:
    file = tmp_path / "formats.py"
    file.write_text(PLUG_IN)
    names = {"tool_call_parser": "mine", "reasoning_parser": "mine"}
    text = '{{I count.}}CALL{"name": "pods", "arguments": {"namespace": "web"}}END'
    async with talking_frontend(text, **names, **{option: str(file)}) as frontend:
        message = (await answer_of(frontend, tools=TOOLS))["choices"][0]["message"]
    assert message["reasoning"] == "I count."
    assert message["tool_calls"][0]["function"] == {"name": "pods", "arguments": ARGUMENTS}


async def test_a_plug_in_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such\.py: there is no such file"):
        async with talking_frontend(tool_parser_plugin=str(tmp_path / "no-such.py")):
            pass


@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"functions": FUNCTIONS}])
async def test_answers_are_as_the_description_says(talking: Frontend, fields: dict[str, Any]) -> None:
    says(talking, f"<think>One call.</think>{CALL}")
    async with talking.http() as client:
        document = await description(client)
        check_answer(document, CHAT, "post", await client.post(CHAT, json={"messages": QUESTION, **fields}))


@pytest.mark.parametrize(
    ("option", "flag"), [("tool_call_parser", "--tool-call-parser"), ("reasoning_parser", "--reasoning-parser")]
)
async def test_an_unknown_format_ends_the_start(option: str, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} herms: no .* format has this name"):
        async with talking_frontend(**{option: "herms"}):
            pass


# ------------------------------------------------------------------------------------------------ the openai client


async def test_the_client_library_reads_calls_and_streams(talking: Frontend) -> None:
    async with talking.openai() as client:
        whole = await client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)
        async with client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=TOOLS) as stream:
            done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
            final = await stream.get_final_completion()
    for answer in (whole, final):
        calls = answer.choices[0].message.tool_calls
        assert calls is not None
        (call,) = calls
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("pods", ARGUMENTS)
    assert [(event.name, event.arguments) for event in done] == [("pods", ARGUMENTS)]


async def test_the_client_library_parses_strict_arguments(talking: Frontend) -> None:
    strict = {"type": "function", "function": {**PODS["function"], "strict": True}}  # type: ignore[dict-item]
    async with talking.openai() as client:
        answer = await client.chat.completions.parse(model=MODEL, messages=QUESTION, tools=[strict])  # type: ignore[list-item]
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert call.function.parsed_arguments == {"namespace": "web"}
