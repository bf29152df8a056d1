"""An input processor for a small trained model."""

from typing import Any

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.input_processor import InputProcessor
from kvasir.hub.chat_template import ChatTemplate
from kvasir.hub.tokenizer import Tokenizer
from runtime.client import trained

LIMIT = 64
"""Tokens of prompt and output together."""
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'nobody' %}{{ raise_exception('unknown role') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def processor_of(tokenizer: Tokenizer, template: ChatTemplate | None = None, **facts: Any) -> InputProcessor:
    templates = ChatTemplates(template)
    return InputProcessor(trained.model_info(**facts), tokenizer, templates, lambda: LIMIT, max_queued=2)
