"""The Ready message of an engine."""

from kvasir.config.resolve import ResolvedEngine
from kvasir.link.protocol import FEATURE_PREFIX_CACHE, FEATURE_PRIORITY, FEATURE_WAVES, Ready


def ready_message(
    settings: ResolvedEngine, num_blocks: int, numerics: str, *, in_waves: bool, kv_address: str, weights: str
) -> Ready:
    """Return the message. `in_waves`: the engine steps with others. `kv_address`: "" if others cannot fetch."""
    return Ready(
        block_size=settings.block_size,
        num_blocks=num_blocks,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_queued_tokens=settings.max_queued_tokens,
        features=_features(settings, in_waves),
        hash_algorithm=settings.prefix_caching_hash_algo,
        numerics=numerics,
        max_num_batched_tokens=0 if settings.long_prefill_token_threshold else settings.max_num_batched_tokens,
        kv_address=kv_address,
        weights=weights,
    )


def _features(settings: ResolvedEngine, in_waves: bool) -> tuple[str, ...]:
    prefix_cache = (FEATURE_PREFIX_CACHE,) if settings.enable_prefix_caching else ()
    priority = (FEATURE_PRIORITY,) if settings.scheduling_policy == "priority" else ()
    return prefix_cache + priority + ((FEATURE_WAVES,) if in_waves else ())
