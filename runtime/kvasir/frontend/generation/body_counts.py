"""Limits on the items in a body, checked before validation, which costs microseconds per item.

Each is more than a model can use: a message has at least one token, a bias is for one token.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.errors import bad_field

MAX_FIELDS: Final = 256  # with unknown ones
MAX_MESSAGES: Final = 8192
MAX_PARTS: Final = 8192  # of content or tool calls, in all messages
MAX_BIASES: Final = 65_536  # for larger vocabularies; OpenAI accepts 300


def check_counts(body: Mapping[str, Any], context: int, vocabulary: int, prompts: int) -> None:
    """Raise ApiError or InvalidRequest (400) with the field and its limit.

    `context` and `vocabulary`: in tokens. `prompts`: limit of a completion's prompts.
    """
    if len(body) > MAX_FIELDS:
        name = next(islice(body, MAX_FIELDS, None))
        raise bad_field(name[:64], f"the request has {len(body)} fields: send at most {MAX_FIELDS}")
    _check_size(body, "messages", "messages", MAX_MESSAGES)
    _check_parts(body.get("messages"))
    _check_size(body, "logit_bias", "entries", min(vocabulary, MAX_BIASES))
    _check_size(body, "allowed_token_ids", "token ids", vocabulary)
    _check_number_of_prompts(body.get("prompt"), prompts)
    if body.get("truncate_prompt_tokens") is None:
        _check_prompt_length(body.get("prompt"), context)


def _check_size(body: Mapping[str, Any], name: str, what: str, limit: int) -> None:
    value = body.get(name)
    if isinstance(value, list | dict) and len(value) > limit:
        raise bad_field(name, f"{name}: {len(value)} {what} are too many, send at most {limit}")


def _check_parts(messages: Any) -> None:
    if not isinstance(messages, list):
        return
    for field, what in (("content", "parts of content"), ("tool_calls", "tool calls")):
        count = 0
        for message in messages:
            if isinstance(message, dict) and isinstance(parts := message.get(field), list):
                count += len(parts)
        if count > MAX_PARTS:
            raise bad_field("messages", f"messages: {count} {what} are too many, send at most {MAX_PARTS}")


def _check_number_of_prompts(prompt: Any, limit: int) -> None:
    if isinstance(prompt, list) and len(prompt) > limit and isinstance(prompt[0], str | list):
        raise bad_field("prompt", f"prompt: {len(prompt)} prompts are too many, send at most {limit}")


def _check_prompt_length(prompt: Any, context: int) -> None:
    if not isinstance(prompt, list) or not prompt:
        return
    longest = len(prompt)
    if isinstance(prompt[0], str | list):
        longest = max((len(each) for each in prompt if isinstance(each, list)), default=0)
    if longest >= context:
        raise InvalidRequest(
            f"the prompt has {longest} tokens, and the context of {context} tokens must also hold the answer: "
            f"shorten the prompt to at most {context - 1} tokens",
            "prompt",
            "context_length_exceeded",
        )
