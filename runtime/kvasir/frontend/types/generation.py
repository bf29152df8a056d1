"""What completions and chat completions have in common."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvasir.frontend.types.fields import Schema


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields of both request bodies. None: the model's generation_config or the server decides."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    """0 or -1 keeps all tokens."""
    seed: int | None = None
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    # Labels for the client's own books: they ask nothing of the answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


CHILDREN: dict[str, Schema[Any]] = {
    "stream_options": Schema(StreamOptions, {"include_obfuscation": (False,), "continuous_usage_stats": (False,)})
}

NOT_YET: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ([],),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "priority": (0,),
    "cache_salt": ("",),
    "request_id": (),
    "kv_transfer_params": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "prompt_cache_retention": ("in_memory", "in-memory"),
}
"""Fields of OpenAI's and vLLM's APIs whose feature is not there → the values that ask for nothing."""
