"""The KV class of an engine: engines of one class may exchange the bytes of KV blocks."""

from hashlib import blake2b

import msgspec

from kvasir.layers.kv import KVCacheConfig


def kv_class(fingerprint: str, numerics: str, cache: KVCacheConfig, layout: str, hash_algorithm: str) -> str:
    """Return the class of engines that may exchange KV blocks.

    It covers all that a block and its hash depend on besides tokens.
    """
    facts = (fingerprint, numerics, cache.groups, layout, hash_algorithm)
    return blake2b(msgspec.msgpack.encode(facts), digest_size=16).hexdigest()
