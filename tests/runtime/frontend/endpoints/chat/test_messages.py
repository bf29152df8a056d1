"""The messages of a history: what other servers and libraries write into them, and what the chat template gets."""

import json
import logging
from typing import Any

import pytest

from kvasir.config.chat_settings import ChatConfig
from kvasir.frontend.endpoints import past_calls
from kvasir.frontend.endpoints.chat import messages as module
from kvasir.frontend.endpoints.chat.messages import Message, template_messages
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.errors import ApiError
from kvasir.frontend.request_bodies.request_body import parse
from kvasir.hub.chat_templates.chat_template import ChatTemplate
from runtime.frontend.harness import Frontend, demo_model, running_frontend
from runtime.link_messages import prompt_of

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "How many pods run?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "pods", "arguments": '{"namespace": "web"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}{% if m.name is defined %} {{ m.name }}{% endif %}>"
    "{% if m.reasoning_content is defined %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}:"
    "{% for key, value in call.function.arguments | items %}{{ key }}={{ value }};{% endfor %}{% endfor %}"
    "{% endfor %}"
)
"""Uses the fields of a message as the templates of Hugging Face do."""


def rendered(*messages: dict[str, Any]) -> str:
    return ChatTemplate(TEMPLATE, {}).render(of(*messages))


def of(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages as the template gets them."""
    return parse(ChatRequest, {"messages": list(messages)}).template_messages()


def test_calls_and_results_of_tools_reach_the_template() -> None:
    asked, called, answered = of(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT)
    assert asked == USER
    function = {"name": "pods", "arguments": {"namespace": "web"}}
    call = {"id": "call_1", "type": "function", "function": function}
    assert called == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert answered == RESULT
    text = rendered(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT)
    assert text == "<user>How many pods run?<assistant>pods:namespace=web;<tool>3"


def test_the_older_form_of_calls_is_the_same() -> None:
    call = {"name": "pods", "arguments": '{"namespace": "web"}'}
    text = rendered(
        {"role": "assistant", "function_call": call}, {"role": "function", "name": "pods", "content": "3"}
    )
    assert text == "<assistant>pods:namespace=web;<tool pods>3"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("", {}),
        (None, {}),
        ('{"a": 1', {}),
        ("[1]", {}),
        ("[" * 5000, {}),
    ],
)
def test_arguments_are_an_object_for_the_template(arguments: Any, given: dict[str, Any]) -> None:
    """The model wrote them: if they are broken, the chat goes on."""
    call = {"function": {"name": "pods", "arguments": arguments}}
    (message,) = of({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == given


@pytest.mark.parametrize("old", [False, True])
def test_arguments_that_take_long_to_parse_are_refused(monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    monkeypatch.setattr(past_calls, "MAX_ARGUMENT_VALUES", 10)
    function = {"name": "pods", "arguments": json.dumps({"a": list(range(6))})}
    message: dict[str, Any] = {"function_call": function} if old else {"tool_calls": [{"function": function}]}
    assert of({"role": "assistant", **message})
    with pytest.raises(ApiError, match="more than 10 values") as caught:
        of({"role": "assistant", **message}, {"role": "assistant", **message})
    assert caught.value.param == "messages"


def test_thoughts_reach_the_template_under_one_name() -> None:
    for name in ("reasoning_content", "reasoning"):
        text = rendered({"role": "assistant", "content": "3", name: "I count."}, USER)
        assert text == "<assistant>(I count.)3<user>How many pods run?"
    (user,) = of({**USER, "reasoning_content": "x"})
    assert user == USER


def test_a_refusal_is_the_text_of_a_message_without_content() -> None:
    assert rendered({"role": "assistant", "content": None, "refusal": "No."}) == "<assistant>No."
    part = {"type": "refusal", "refusal": "No."}
    assert of({"role": "assistant", "content": [part]})[0]["content"] == [{"type": "text", "text": "No."}]
    assert rendered({"role": "assistant", "content": "3", "refusal": None}) == "<assistant>3"


def test_empty_lists_of_calls_are_as_good_as_none() -> None:
    (message,) = of({"role": "assistant", "content": "3", "tool_calls": [], "function_call": None})
    assert message == {"role": "assistant", "content": "3"}


async def test_unknown_fields_are_ignored_and_logged_once(
    frontend: Frontend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.log, "_last", {})
    text = {"type": "text", "text": "What is a pod?", "cache_control": {"type": "ephemeral"}}
    answer = {
        "role": "assistant",
        "content": "A group.",
        "refusal": None,
        "annotations": [{"type": "url_citation"}],
        "audio": None,
        "provider_specific_fields": {"x": 1},
        "x" * 100: 1,
    }
    body = {"messages": [{"role": "user", "content": [text]}, answer, {"role": "user", "content": "Why?"}]}
    with caplog.at_level(logging.INFO, module.__name__):
        async with frontend.http() as client:
            for _ in range(2):
                response = await client.post(CHAT, json=body)
                assert response.status_code == 200, response.text
    lines = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    fields = ("[].content[].cache_control", "[].annotations", "[].provider_specific_fields", f"[].{'x' * 64}…")
    assert lines == [f"a request has the unknown field messages{field}, which is ignored" for field in fields]
    _, tokenizer = demo_model()
    prompt = tokenizer.decode(prompt_of(frontend.engine.seen.requests[0]), skip_special_tokens=False)
    assert prompt.startswith("<|begin|><|user|>What is a pod?<|end|><|assistant|>A group.<|end|><|user|>Why?")


async def test_a_template_without_words_for_tools_refuses_them_itself() -> None:
    template = (
        "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ message.content }}{% endfor %}"
    )
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT]
    async with running_frontend(chat=ChatConfig(chat_template=template)) as frontend, frontend.http() as client:
        response = await client.post(CHAT, json={"messages": messages})
        counted = await client.post("/tokenize", json={"messages": messages[:2]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert "chat template refuses the messages" in error["message"]
    assert counted.status_code == 200


def test_an_effort_is_a_variable_of_the_template() -> None:
    def variables(**fields: Any) -> dict[str, Any]:
        given = parse(ChatRequest, {"messages": [USER], **fields}).template_variables()
        return {name: given.get(name) for name in ("reasoning_effort", "enable_thinking")}

    assert variables() == {"reasoning_effort": None, "enable_thinking": None}
    assert variables(reasoning_effort="low") == {"reasoning_effort": "low", "enable_thinking": True}
    assert variables(reasoning_effort="none") == {"reasoning_effort": "none", "enable_thinking": False}
    explicit = variables(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert explicit == {"reasoning_effort": "low", "enable_thinking": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 3.0},
        {"metadata": {"team": "web", "tries": 3}, "store": True, "service_tier": "priority"},
        {"verbosity": "low", "reasoning_effort": "high", "prompt_cache_retention": "24h"},
    ],
)
async def test_fields_that_ask_nothing_of_the_answer_are_accepted(
    frontend: Frontend, fields: dict[str, Any]
) -> None:
    async with frontend.http() as client:
        response = await client.post(CHAT, json={"messages": [USER], **fields})
    assert response.status_code == 200, response.text


def test_a_list_of_messages_must_not_be_empty() -> None:
    with pytest.raises(ApiError, match="the list is empty"):
        template_messages([])
    assert template_messages([Message(role="user", content="Hi")]) == [{"role": "user", "content": "Hi"}]
