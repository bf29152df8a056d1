"""Speculation: how an engine guesses tokens, from --speculative-config. Names are vLLM's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import inspect

from kvasir.config.advice import closest
from kvasir.config.options import ConfigError

NGRAM: Final = "ngram"
SUFFIX: Final = "suffix"
METHODS: Final = (NGRAM, SUFFIX)
MAX_DRAFT_TOKENS: Final = 128
MAX_NGRAM_TOKENS: Final = 64
_NGRAM_TOKENS: Final = 5
_NGRAM_DRAFTS: Final = 5

# Up to so many rows, the time of a step is mostly that of reading the weights.
CPU_STEP_ROWS: Final = 16
GPU_STEP_ROWS: Final = 128
# One or two drafts of a request cost more than they save.
MIN_ROWS_OF_REQUEST: Final = 4

_Drafts = Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFT_TOKENS)]
_Ngram = Annotated[int, msgspec.Meta(ge=1, le=MAX_NGRAM_TOKENS)]

# Fields of vLLM that would change nothing here.
_WITHOUT_EFFECT: Final = frozenset({
    "acceptance_method", "attention_backend", "code_revision", "disable_logprobs", "disable_log_stats",
    "disable_mqa_scorer", "disable_padded_drafter_batch", "draft_load_config", "draft_sample_method",
    "draft_tensor_parallel_size", "dspark_draft_topk", "enable_adaptive_verification", "enforce_eager",
    "index_share_for_mtp_iteration", "kv_cache_dtype", "max_model_len", "moe_backend",
    "num_speculative_tokens_per_batch_size", "parallel_drafting", "posterior_alpha", "posterior_threshold",
    "quantization", "rejection_sample_method", "revision", "speculative_token_tree", "tensor_parallel_size",
    "use_heterogeneous_vocab", "use_local_argmax_reduction",
})  # fmt: skip


@dataclass(frozen=True)
class Speculation:
    method: str
    """ngram or suffix."""
    num_speculative_tokens: int
    """Most drafts of a request in a step."""
    max_step_rows: int
    """Most tokens that a step samples or verifies: with so many running requests it has no drafts."""
    prompt_lookup_min: int
    prompt_lookup_max: int
    """Tokens of the n-grams that are looked up."""
    disable_by_batch_size: int | None = None
    """With more running requests, a step has no drafts."""
    suffix_decoding_max_tree_depth: int = 24
    """Most tokens that are compared with earlier ones."""
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    """Drafts per equal token."""
    suffix_decoding_min_token_prob: float = 0.1


class SpeculativeConfig(msgspec.Struct, frozen=True):
    """The fields of the option that have an effect."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: _Drafts | None = None
    prompt_lookup_max: _Ngram | None = None
    prompt_lookup_min: _Ngram | None = None
    disable_by_batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    suffix_decoding_max_tree_depth: Annotated[int, msgspec.Meta(ge=4, le=128)] = 24
    suffix_decoding_max_cached_requests: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 10_000
    suffix_decoding_max_spec_factor: Annotated[float, msgspec.Meta(ge=0, le=16)] = 1.0
    suffix_decoding_min_token_prob: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def resolved(self, on_cpu: bool) -> Speculation:
        longest = self.prompt_lookup_max or self.prompt_lookup_min or _NGRAM_TOKENS
        rows = CPU_STEP_ROWS if on_cpu else GPU_STEP_ROWS
        drafts = _NGRAM_DRAFTS if self.method == NGRAM else self.suffix_decoding_max_tree_depth
        return Speculation(
            method=self.method or NGRAM,
            num_speculative_tokens=self.num_speculative_tokens or drafts,
            max_step_rows=rows,
            prompt_lookup_min=self.prompt_lookup_min or longest,
            prompt_lookup_max=longest,
            disable_by_batch_size=self.disable_by_batch_size or rows // MIN_ROWS_OF_REQUEST,
            suffix_decoding_max_tree_depth=self.suffix_decoding_max_tree_depth,
            suffix_decoding_max_cached_requests=self.suffix_decoding_max_cached_requests,
            suffix_decoding_max_spec_factor=self.suffix_decoding_max_spec_factor,
            suffix_decoding_min_token_prob=self.suffix_decoding_min_token_prob,
        )


def read_speculative_config(text: str) -> SpeculativeConfig | None:
    """Return the fields, None for an empty object. Raises ConfigError."""
    given = json.loads(text)
    if not given:
        return None
    try:
        config = msgspec.convert(given, SpeculativeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--speculative-config: {_in_words(given, error)}") from error
    known = SpeculativeConfig.__struct_fields__
    for name in given:
        if name not in known and name not in _WITHOUT_EFFECT:
            meant = closest(name, known)
            hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(known)}"
            raise ConfigError(f"--speculative-config: there is no field {name!r} ({hint})")
    return msgspec.structs.replace(config, method=_method(config))


def _in_words(given: Mapping[str, Any], error: msgspec.ValidationError) -> str:
    # msgspec names the field as in "Expected `int`, got `str` - at `$.method`"
    name = str(error).rpartition("$.")[2].rstrip("`")
    info = inspect.type_info(SpeculativeConfig)
    assert isinstance(info, inspect.StructType)
    (type_,) = (field.type for field in info.fields if field.name == name)
    kind = type_.types[0] if isinstance(type_, inspect.UnionType) else type_
    accepted = "a text"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        number = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
        bounds = f"of {kind.ge:g} or more" if kind.le is None else f"from {kind.ge:g} to {kind.le:g}"
        accepted = f"{number} {bounds}"
    return f"{name} is {json.dumps(given[name])}: give {accepted}"


def drafting_obstacle(pools: bool, pipeline_stages: int, shares_experts: bool) -> str:
    """Return why an engine with these settings has no drafts; "" if it may have some."""
    if pools:
        return "the model generates no text"
    if pipeline_stages > 1:
        return "the stages of a pipeline compute steps before the tokens of earlier ones are known"
    if shares_experts:
        return "engines that share experts make their steps together"
    return ""


def fields_without_effect(text: str) -> list[str]:
    given = json.loads(text)
    is_named = bool(given.get("method")) and given.get("model")  # no method here uses a model
    return [name for name in given if name in _WITHOUT_EFFECT or (name == "model" and is_named)]


def speculation_without_effect(text: str, obstacle: str) -> list[str]:
    """Return a sentence for each part of the option that is ignored. `obstacle`: of `drafting_obstacle`."""
    sentences = []
    if fields := fields_without_effect(text):
        have = "has" if len(fields) == 1 else "have"
        sentences.append(f"--speculative-config: {', '.join(fields)} {have} no effect: see docs/speculation.md")
    if obstacle and read_speculative_config(text) is not None:
        sentences.append(f"--speculative-config has no effect: {obstacle}")
    return sentences


def _method(config: SpeculativeConfig) -> str:
    # Older releases name a method without a model as [ngram], or as the model.
    names = [name.strip("[]").removesuffix("_gpu") for name in (config.method, config.model) if name]
    if names and names[0] in METHODS:
        shortest, longest = config.prompt_lookup_min, config.prompt_lookup_max
        if shortest and longest and shortest > longest:
            raise ConfigError(
                f"--speculative-config: prompt_lookup_min {shortest} is above prompt_lookup_max {longest}"
            )
        return names[0]
    have = 'use {"method": "ngram"} or {"method": "suffix"}, which guess from the text itself'
    if config.method:
        raise ConfigError(f"--speculative-config: the method {config.method} is not supported yet: {have}")
    if config.model:
        raise ConfigError(f"--speculative-config: draft models ({config.model}) are not supported yet: {have}")
    raise ConfigError(f"--speculative-config needs a method: {have}")
