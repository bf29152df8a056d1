"""An input processor for a small trained model."""

from typing import Any

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.service_limits import ServiceLimits
from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.tokenizer import Tokenizer
from runtime.client import trained

LIMIT = 64
"""Tokens of prompt and output together."""
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'nobody' %}{{ raise_exception('unknown role') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def processor_of(tokenizer: Tokenizer, template: ChatTemplate | None = None, **facts: Any) -> InputProcessor:
    limits = ServiceLimits(LIMIT, takes_priority=False)
    return InputProcessor(trained.model_info(**facts), tokenizer, ChatTemplates(template), limits, max_queued=2)
