"""Chats with the template of --chat-template, and with a model that has none."""

import json
import shutil
from pathlib import Path

from kvasir.config.frontend_settings import ChatConfig
from kvasir.hub.source import fetch
from runtime.frontend.harness import Frontend, demo_model, running_frontend

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "a pod?"}]},
]


async def test_a_model_without_a_template_gets_the_messages_joined(tmp_path: Path) -> None:
    model = shutil.copytree(fetch("demo://", weights=False), tmp_path / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    async with running_frontend(source=str(model)) as frontend:
        assert await _prompt(frontend) == "Be brief.\nWhat is\na pod?\n"


async def test_the_given_template_renders_the_chats() -> None:
    chat = ChatConfig(
        chat_template="{{ colour }}{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}"
        "{% endfor %}",
        default_chat_template_kwargs='{"colour": "red"}',
    )
    async with running_frontend(chat=chat) as frontend:
        assert await _prompt(frontend) == "red[Be brief.][What is\na pod?]"
        assert (
            await _prompt(frontend, chat_template_kwargs={"colour": "blue"}) == "blue[Be brief.][What is\na pod?]"
        )


async def _prompt(frontend: Frontend, **fields: object) -> str:
    """The text that the engine gets."""
    body = {"messages": MESSAGES, "return_token_ids": True, **fields}
    async with frontend.http() as client:
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    return demo_model()[1].decode(answer["prompt_token_ids"], skip_special_tokens=True)
