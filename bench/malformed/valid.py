"""Valid requests, which the kinds of malformed ones change, and the form of a case."""

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_TOKENS: Final = 4
USER: Final = {"role": "user", "content": "Who are you?"}
BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    (
        "/v1/completions",
        {"model": "demo", "prompt": "Who", "max_tokens": MAX_TOKENS, "temperature": 0.5, "seed": 1},
    ),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": MAX_TOKENS, "n": 2, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": MAX_TOKENS, "stop": ["x", "yz"], "top_p": 0.5}),
    (
        "/v1/chat/completions",
        {"messages": [USER], "max_tokens": MAX_TOKENS, "logprobs": True, "top_logprobs": 2, "min_p": 0.1},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, USER],
            "max_completion_tokens": MAX_TOKENS,
            "stream_options": {"include_usage": True},
            "stream": True,
            "logit_bias": {"5": 1.0},
            "chat_template_kwargs": {"a": 1},
        },
    ),
    (
        "/v1/responses",
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}],
            "instructions": "Be brief.",
            "max_output_tokens": MAX_TOKENS,
            "truncation": "auto",
            "text": {"format": {"type": "text"}},
            "stream": True,
        },
    ),
    (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "a"}],
            "messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "I"}]}],
            "max_tokens": MAX_TOKENS,
            "stop_sequences": ["x"],
            "stream": True,
        },
    ),
    ("/v1/messages/count_tokens", {"messages": [USER], "system": "a"}),
    ("/tokenize", {"prompt": "Who", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": [USER], "add_generation_prompt": False}),
    ("/detokenize", {"model": "demo", "tokens": [5, 6, 7]}),
]
POOLING_BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/embeddings", {"model": "demo", "input": "Who", "encoding_format": "base64", "user": "me"}),
    ("/v1/embeddings", {"input": ["a", "b"], "dimensions": 8, "truncate_prompt_tokens": 3, "priority": 0}),
    ("/v1/embeddings", {"input": [[5, 6], [7]], "normalize": False, "truncation_side": "left"}),
    ("/v1/embeddings", {"messages": [USER], "add_generation_prompt": True, "chat_template_kwargs": {"a": 1}}),
    ("/pooling", {"input": [5, 6], "encoding_format": "base64", "embed_dtype": "float16", "endianness": "big"}),
    ("/classify", {"input": ["a", "b"], "activation": False}),
    ("/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/v1/score", {"queries": ["a", "b"], "documents": ["c", "d"], "activation": False}),
    ("/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}),
    ("/v2/rerank", {"model": "demo", "query": "a", "documents": ["b", "c"], "truncate_prompt_tokens": -1}),
    (
        "/v2/embed",
        {
            "model": "demo",
            "texts": ["a", "b"],
            "input_type": "search_query",
            "embedding_types": ["float", "ubinary"],
            "truncate": "START",
            "output_dimension": 8,
        },
    ),
]


class Choices(random.Random):
    """The random choices of a case, which changes one of `bodies`."""

    def __init__(self, seed: str, bodies: Sequence[tuple[str, dict[str, Any]]] = tuple(BODIES)) -> None:
        super().__init__(seed)
        self.bodies = bodies


@dataclass(frozen=True)
class Case:
    """The bytes that are sent over a new connection."""

    kind: str
    data: bytes
    # Close the connection at once, or after the first bytes of an answer (`read_first`).
    hang_up: bool = False
    read_first: bool = False


def valid(rng: random.Random) -> tuple[str, dict[str, Any]]:
    # A path and a valid body for changes.
    path, body = rng.choice(rng.bodies if isinstance(rng, Choices) else BODIES)
    return path, copy.deepcopy(body)


def good_request(rng: random.Random) -> bytes:
    path, body = valid(rng)
    return post(path, json.dumps(body).encode())


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
