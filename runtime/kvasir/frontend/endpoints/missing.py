"""Endpoints of vLLM's server that Kvasir does not have, with the reason that a client gets."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_SCORING = "give the texts to /score of a cross-encoder, or ask for logprobs in /v1/completions"
_AUDIO = "this server reads and writes text, and no audio"
_SLEEP = "engines keep the model in memory until they end; stop the service instead"
_PAUSE = "engines cannot be paused; a load balancer can hold requests back"
_WEIGHTS = "an engine keeps the weights that it loaded; start the service with the new ones"
_SCALE = "the number of engines is changed in the InferenceService (spec.engine.dataParallelSize)"
_RPC = "methods of workers can be called in Kvasir's offline API only"
_CACHE = "this server has no cache of images or audio"
_BATCH = "send the conversations in requests of their own, or a file of them with kvasir run-batch"
_TOKENS = "send token ids as the prompt of /v1/completions, with return_token_ids"
_ABORT = "close the connection of a request to abort it"
_RENDER = "/tokenize gives the tokens of a conversation or a text"
_DERENDER = "/detokenize gives the text of tokens"
_STORED = "this server stores no responses: keep the answer of POST /v1/responses"
_DECISIONS = "use structured_outputs with choice in /v1/chat/completions"
_COHERE = "use /v1/chat/completions"
_FAULTS = "an engine that dies is started again by itself; GET /health shows its phase"
_EVENTS = "engines publish no events of their KV cache"

_RESPONSE: Final = re.compile(r"/v1/responses/[^/]+(/cancel)?")

REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "/generative_scoring": _SCORING,
        **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"), _AUDIO),
        **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory"), _SLEEP),
        **dict.fromkeys(("/pause", "/resume", "/is_paused"), _PAUSE),
        **dict.fromkeys(("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"), _WEIGHTS),
        **dict.fromkeys(("/start_weight_update", "/start_draft_weight_update", "/finish_weight_update"), _WEIGHTS),
        **dict.fromkeys(("/update_weights", "/update_weight_version", "/weight_info", "/weight_checker"), _WEIGHTS),
        **dict.fromkeys(("/scale_elastic_ep", "/is_scaling_elastic_ep"), _SCALE),
        **dict.fromkeys(("/fault_tolerance/status", "/fault_tolerance/apply"), _FAULTS),
        "/collective_rpc": _RPC,
        "/get_world_size": "GET /load lists the engines",
        "/kv_event_sources": _EVENTS,
        **dict.fromkeys(("/reset_mm_cache", "/reset_encoder_cache"), _CACHE),
        "/v1/chat/completions/batch": _BATCH,
        "/inference/v1/generate": _TOKENS,
        **dict.fromkeys(("/abort_requests", "/inference/v1/abort_requests"), _ABORT),
        **dict.fromkeys(("/v1/chat/completions/render", "/v1/completions/render"), _RENDER),
        **dict.fromkeys(("/v1/messages/render", "/v1/responses/render"), _RENDER),
        **dict.fromkeys(("/v1/chat/completions/derender", "/v1/completions/derender"), _DERENDER),
        "/v1/systemone": _DECISIONS,
        **dict.fromkeys(("/cohere/v2/chat", "/cohere/v2/chat/render"), _COHERE),
        "/server_info": "GET /version has the version, and the log of each process its settings",
    }
)


def reason_of(path: str) -> str | None:
    """Return why Kvasir does not have an endpoint of vLLM; None for other paths."""
    if (reason := REASONS.get(path)) is not None:
        return reason
    return _STORED if _RESPONSE.fullmatch(path) else None
