import json
import logging
from pathlib import Path

import pytest
import tokenizers
from tokenizers import processors

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.request_errors import InvalidRequest
from kvasir.config.chat_settings import ChatConfig
from kvasir.config.options import ConfigError
from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.tokenizer import load_tokenizer
from runtime.client import trained
from runtime.client.input.processors import processor_of

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a pod?"}]
NAMES = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.type }} {{ p.text }}]{% endfor %}{% endfor %}"
SHOWN = "{{ colour }} {{ size }}"


def test_messages_without_a_template_are_joined_by_line_breaks() -> None:
    templates = ChatTemplates(None)
    assert templates.render(CHAT, add_generation_prompt=True) == "Be brief.\nWhat is a pod?\n"
    assert templates.render(CHAT, add_generation_prompt=False) == "Be brief.\nWhat is a pod?"
    continued = templates.render(CHAT, add_generation_prompt=False, continue_final_message=True)
    assert continued == "Be brief.\nWhat is a pod?"


def test_a_missing_template_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    templates = ChatTemplates(None)
    with caplog.at_level(logging.WARNING):
        templates.render(CHAT)
        templates.render(CHAT)
    assert [record.message for record in caplog.records] == [
        "this model has no chat template: the messages of chats are joined by line breaks; "
        "--chat-template gives it one"
    ]


async def test_joined_messages_get_the_special_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    backend = trained.byte_level()
    begin = trained.token_id(backend, "<s>")
    backend.post_processor = _begins_with(backend, "<s>")
    tokenizer = load_tokenizer(trained.save(backend, tmp_path))
    plain = processor_of(tokenizer)
    templated = processor_of(tokenizer, ChatTemplate("{{ messages[0].content }}", {}))
    message = [{"role": "user", "content": "the dog"}]
    assert (await plain.render_chat(message))[0] == begin
    assert begin not in await templated.render_chat(message)
    plain.close()
    templated.close()


@pytest.mark.parametrize("as_file", [True, False])
def test_the_given_template_replaces_the_models(tmp_path: Path, as_file: bool) -> None:
    model = trained.save(trained.byte_level(), tmp_path)
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "the model's", "bos_token": "<s>"}))
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}" + NAMES)
    given = str(file) if as_file else file.read_text()
    templates = ChatTemplates.load(model, ChatConfig(chat_template=given))
    assert templates.render(CHAT) == "<s>system=Be brief.;user=What is a pod?;"
    assert ChatTemplates.load(model).render(CHAT) == "the model's"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no/such/file.jinja", "--chat-template no/such/file.jinja: No such file or directory; give a file"),
        ("{% if %}", "--chat-template is not a Jinja template, line 1"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatTemplates.load(trained.save(trained.byte_level(), tmp_path), ChatConfig(chat_template=given))


@pytest.mark.parametrize(
    ("template", "form", "text"),
    [
        (NAMES, "auto", "user=one\ntwo;"),
        (PARTS, "auto", "[text one][text two]"),
        (NAMES, "string", "user=one\ntwo;"),
        (PARTS, "openai", "[text one][text two]"),
    ],
)
def test_content_has_the_format_that_the_template_wants(template: str, form: str, text: str) -> None:
    templates = ChatTemplates(ChatTemplate(template, {}), config=ChatConfig(chat_template_content_format=form))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert templates.render([{"role": "user", "content": parts}]) == text


def test_a_text_becomes_one_part_for_a_template_of_parts() -> None:
    templates = ChatTemplates(ChatTemplate(PARTS, {}))
    assert templates.render(CHAT[1:]) == "[text What is a pod?]"
    continued = templates.render(CHAT[1:], add_generation_prompt=False, continue_final_message=True)
    assert continued == "[text What is a pod?"


def test_a_message_of_no_parts_can_be_continued() -> None:
    templates = ChatTemplates(ChatTemplate("{% for p in messages[0].content %}[{{ p.text }}{% endfor %}", {}))
    message = [{"role": "user", "content": []}]
    assert templates.render(message, add_generation_prompt=False, continue_final_message=True) == "["


def test_a_request_overrides_the_default_variables() -> None:
    config = ChatConfig(default_chat_template_kwargs='{"colour": "red", "size": 1}')
    templates = ChatTemplates(ChatTemplate(SHOWN, {}), config=config)
    assert templates.render(CHAT) == "red 1"
    assert templates.render(CHAT, size=2) == "red 2"


def test_default_variables_cannot_be_those_of_the_server() -> None:
    config = ChatConfig(default_chat_template_kwargs='{"messages": []}')
    with pytest.raises(ConfigError, match="--default-chat-template-kwargs: messages cannot be set"):
        ChatTemplates(None, config=config)


def test_template_of_a_request_needs_trust() -> None:
    trusting = ChatTemplates(None, {"bos_token": "<s>"}, ChatConfig(trust_request_chat_template=True))
    assert trusting.render(CHAT, chat_template="{{ bos_token }}" + NAMES).startswith("<s>system=Be brief.;")
    with pytest.raises(InvalidRequest, match="chat_template is not a Jinja template, line 1") as caught:
        trusting.render(CHAT, chat_template="{% if %}")
    assert caught.value.param == "chat_template"
    with pytest.raises(InvalidRequest, match="--trust-request-chat-template") as caught:
        ChatTemplates(None).render(CHAT, chat_template=NAMES)
    assert caught.value.param == "chat_template"


def _begins_with(backend: tokenizers.Tokenizer, token: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, trained.token_id(backend, token))]
    )
