"""Endpoints of vLLM's server that Kvasir does not have, and why: a client that asks for one gets the reason."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_POOLING = "this server generates text, and serves no embedding, classification or scoring models"
_AUDIO = "this server reads and writes text, and no audio"
_ADAPTERS = "LoRA adapters are not supported yet"
_SLEEP = "engines keep the model in memory until they end; stop the service instead"
_PAUSE = "engines cannot be paused; a load balancer can hold requests back"
_PROFILE = "there is no profiler in the server; a step that takes long is in the engine's log"
_WEIGHTS = "an engine keeps the weights that it loaded; start the service with the new ones"
_SCALE = "the number of engines is changed in the InferenceService (spec.engine.dataParallelSize)"
_RPC = "methods of workers can be called in Kvasir's offline API only"
_CACHE = "this server has no cache of images or audio"
_BATCH = "send the conversations in requests of their own, or a file of them with kvasir run-batch"
_TOKENS = "send token ids as the prompt of /v1/completions, with return_token_ids"
_RENDER = "/tokenize gives the tokens of a conversation or a text"

REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("/v1/embeddings", "/v2/embed", "/pooling", "/classify"), _POOLING),
        **dict.fromkeys(("/score", "/v1/score", "/generative_scoring"), _POOLING),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _POOLING),
        **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"), _AUDIO),
        **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _ADAPTERS),
        **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping"), _SLEEP),
        **dict.fromkeys(("/pause", "/resume", "/is_paused"), _PAUSE),
        **dict.fromkeys(("/start_profile", "/stop_profile"), _PROFILE),
        **dict.fromkeys(("/init_weight_transfer_engine", "/update_weights"), _WEIGHTS),
        **dict.fromkeys(("/scale_elastic_ep", "/is_scaling_elastic_ep"), _SCALE),
        "/collective_rpc": _RPC,
        **dict.fromkeys(("/reset_mm_cache", "/reset_encoder_cache"), _CACHE),
        "/v1/chat/completions/batch": _BATCH,
        "/inference/v1/generate": _TOKENS,
        **dict.fromkeys(("/v1/chat/completions/render", "/v1/completions/render"), _RENDER),
        "/server_info": "GET /version has the version, and the log of each process its settings",
    }
)
"""By path."""
