"""Chat templates render what transformers renders, and nothing they do gets out of the sandbox."""

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kvasir.hub.chat_templates.chat_template import ChatTemplate, ChatTemplateError
from kvasir.hub.hub_errors import HubError
from kvasir.hub.source import fetch
from runtime.hub import small_tokenizers as small
from runtime.hub.chat_templates.example_templates import CHATML, INSTRUCT, TEMPLATES

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": None, "image_token": "<image>"}

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Grüße <b>\n\n"}],
    [
        {"role": "user", "content": "1 + 1?", "name": None},
        {"role": "assistant", "content": "2", "tool_calls": None},
        {"role": "user", "content": "{{ 7 * 7 }} and </s>"},
    ],
]

KWARGS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": False},
    {"enable_thinking": False, "date_string": "26 Jul 2024"},
    {"bos_token": "<other>"},
]


def save(path: Path, template: str | None, **config: Any) -> Path:
    small.save(path, small.bare_byte_level(), SPECIAL | config)
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


def loaded(path: Path) -> ChatTemplate:
    template = ChatTemplate.load(path)
    assert template is not None
    return template


def template(text: str) -> ChatTemplate:
    return ChatTemplate(text, {"bos_token": "<s>"})


def assert_equal_to_transformers(path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(path)
    ours = loaded(path)
    for chat in CHATS:
        for kwargs in KWARGS:
            wanted = theirs.apply_chat_template(chat, tokenize=False, **{"add_generation_prompt": True} | kwargs)
            assert ours.render(chat, **kwargs) == wanted, (chat, kwargs)


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    assert_equal_to_transformers(save(tmp_path, TEMPLATES[name]))


def test_demo_models_text_is_that_of_transformers() -> None:
    assert_equal_to_transformers(fetch("demo://", weights=False))


@pytest.mark.parametrize("name", ["headers", "chatml", "instruct"])
@pytest.mark.parametrize("content", ["The answer is", " The answer is  ", "", "\n"])
def test_a_continued_message_ends_as_in_transformers(name: str, content: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = save(tmp_path, TEMPLATES[name])
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": content}]
    wanted = AutoTokenizer.from_pretrained(path).apply_chat_template(
        chat, tokenize=False, continue_final_message=True
    )
    assert loaded(path).render(chat, add_generation_prompt=False, continue_final_message=True) == wanted


def test_a_message_that_a_template_cuts_is_not_continued() -> None:
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        template("{{ messages[0].content[:3] }}").render(
            [{"role": "assistant", "content": "The answer"}], continue_final_message=True
        )


def test_tools_reach_the_template_as_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = save(tmp_path, CHATML)
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "description": "<&>", "parameters": {}}}]
    wanted = AutoTokenizer.from_pretrained(path).apply_chat_template(
        CHATS[0], tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert loaded(path).render(CHATS[0], tools=tools) == wanted


def test_template_may_stand_in_tokenizer_config(tmp_path: Path) -> None:
    assert (
        loaded(save(tmp_path, None, chat_template="{{ eos_token }}in the config")).render([]) == "</s>in the config"
    )


def test_default_of_several_named_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert loaded(save(tmp_path, None, chat_template=named)).render([]) == "plain"


def test_file_wins_over_tokenizer_config(tmp_path: Path) -> None:
    assert loaded(save(tmp_path, "file", chat_template="config")).render([]) == "file"


def test_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(save(tmp_path / "a", None)) is None
    assert ChatTemplate.load(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            [{"name": "rag", "template": "x"}],
            r"chat_template has no .* named default \(it has: rag\); put the one to use into",
        ),
        ([], r"chat_template has no template named default \(it has: none\)"),
        ({"a": 1}, "chat_template is neither a text nor a list of named ones"),
        ("{% if %}", "chat_template is not a Jinja template, line 1"),
        ("{{ " + "9" * 5000 + " }}", "chat_template cannot be compiled: ValueError"),
        ("{% for i in x %}" * 25 + "{% endfor %}" * 25, "chat_template cannot be compiled: SyntaxError"),
    ],
)
def test_unusable_template_is_named(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(HubError, match=rf"{tmp_path}/tokenizer_config\.json: {said}"):
        ChatTemplate.load(save(tmp_path, None, chat_template=config))


def test_syntax_error_is_told_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(
        HubError, match=rf"{tmp_path}/chat_template\.jinja is not a Jinja template, line 3: Expected"
    ):
        ChatTemplate.load(save(tmp_path, "one\ntwo\n{% for %}{% endfor %}"))


@pytest.mark.parametrize(
    ("text", "chat", "said"),
    [
        (INSTRUCT, [{"role": "assistant", "content": "x"}], "Conversation roles must alternate"),
        ("{{ messages[0].content + 1 }}", CHATS[0], "it fails with TypeError"),
        ("{{ messages[0].content.parts.first }}", CHATS[0], "has no attribute 'parts'"),
        ("{{ 1 / 0 }}", CHATS[0], "it fails with ZeroDivisionError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", CHATS[0], "it fails with OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", CHATS[0], "it fails with RecursionError"),
        ("{% include 'other' %}", CHATS[0], "it fails with TypeError"),
    ],
)
def test_template_that_refuses_or_fails_says_why(text: str, chat: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ChatTemplateError, match=said):
        template(text).render(chat)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ dict.update(messages[0], role='system') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ (messages | tojson).format.__self__ }}",
    ],
)
def test_template_reaches_neither_python_nor_the_messages(text: str) -> None:
    chat = [{"role": "user", "content": "x"}]
    with suppress(ChatTemplateError):  # or the value is undefined, which renders as an empty string
        assert template(text).render(chat) == ""
    assert chat == [{"role": "user", "content": "x"}]


def test_list_content_is_passed_on_as_it_is() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rendered = template("{{ messages[0].content | tojson }}").render([{"role": "user", "content": parts}])
    assert json.loads(rendered) == parts


def test_further_variables_cannot_replace_the_conversation() -> None:
    with pytest.raises(ChatTemplateError, match="messages is the conversation itself"):
        template("x").render(CHATS[0], messages=[])
    assert template("{{ self_ }}{{ bos_token }}").render([], self_=1, bos_token="<b>") == "1<b>"


def test_strftime_now_gives_the_local_date() -> None:
    before = datetime.now().strftime("%d %b %Y")
    rendered = template("{{ strftime_now('%d %b %Y') }}").render([])
    assert rendered in (before, datetime.now().strftime("%d %b %Y"))
