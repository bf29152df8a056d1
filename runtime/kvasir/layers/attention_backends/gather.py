"""Attention in plain torch, for requests of similar length at once. Copies K and V out of the cache."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.layers.attention import HeadShape, KVCache, ScoreRule
from kvasir.layers.attention_backends.score_weights import cap_, weights_of
from kvasir.layers.rotary import Rotation, rotate_qk_

_QUERIES_AT_ONCE = 256  # bounds the memory of scores


@dataclass(frozen=True)
class DecodeGroup:
    tokens: slice
    pieces: Tensor  # [2 * rows * kv_heads * blocks] rows of KVCache.by_head
    mask: Tensor | None  # [rows, 1, 1, blocks * block_size] float32; None: no padding


@dataclass(frozen=True)
class PrefillChunk:
    """New tokens of one request, or of equally long requests without earlier tokens."""

    tokens: slice
    requests: int
    pieces: Tensor | None  # [2 * kv_heads * blocks]; None: no earlier tokens
    # [queries, length] for the last queries; earlier ones shift it left. None: causal.
    mask: Tensor | None
    length: int  # keys of earlier and new tokens


@dataclass(frozen=True)
class GatheredReads:
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillChunk, ...]


@dataclass(frozen=True)
class GatherPlan:
    heads: HeadShape
    blocks: Tensor  # [T]
    offsets: Tensor  # [T] within the block
    # [B] blocks to clear, which the step begins but does not fill: attention multiplies their unused
    # places by 0, and 0 times a NaN of the last owner is NaN.
    begun: Tensor | None
    reads: Mapping[int | None, GatheredReads]  # by window; None: all tokens

    def within(self, window: int | None) -> GatheredReads:
        found = self.reads.get(window)
        return self.reads[None] if found is None else found

    def write(self, kv: Tensor, cache: KVCache) -> None:
        if self.begun is not None:
            cache.blocks.index_fill_(0, self.begun, 0)
        cache.by_token.index_put_((self.blocks, self.offsets), self._by_head(kv))

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        return self._attend(q, None, cache, rule)

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        if rotation is not None:
            rotate_qk_(qkv, self.heads.kv_heads, self.heads.head_dim, rotation)
        q, kv = qkv[:, : self.heads.query_size], qkv[:, self.heads.query_size :]
        self.write(kv, cache)
        return self._attend(q, self._by_head(kv), cache, rule)

    def _attend(self, q: Tensor, kv: Tensor | None, cache: KVCache, rule: ScoreRule) -> Tensor:
        # kv [T, 2, kv_heads, head_dim]; None: in the cache
        heads, reads = self.heads, self.within(rule.window)
        if rule.sinks is not None:  # with the dimensions of scores [..., queries, keys]
            rule = replace(rule, sinks=rule.sinks.view(heads.kv_heads, -1, 1))
        parts = [_decode(q[group.tokens], cache, group, heads, rule) for group in reads.decode]
        for chunk in reads.prefill:
            chunk_kv = self._chunk_kv(chunk, kv, cache)
            parts.append(_prefill(q[chunk.tokens], chunk_kv, chunk, heads, rule))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _chunk_kv(self, chunk: PrefillChunk, kv: Tensor | None, cache: KVCache) -> Tensor:
        # [2, requests, kv_heads, length, head_dim]
        heads = self.heads
        if chunk.pieces is not None:
            read = cache.by_head.index_select(0, chunk.pieces).view(2, 1, heads.kv_heads, -1, heads.head_dim)
            return read[:, :, :, : chunk.length]
        new = chunk.tokens
        kv = cache.by_token[self.blocks[new], self.offsets[new]] if kv is None else kv[new]
        return kv.view(chunk.requests, -1, 2, heads.kv_heads, heads.head_dim).permute(2, 0, 3, 1, 4)

    def _by_head(self, kv: Tensor) -> Tensor:
        return kv.view(-1, 2, self.heads.kv_heads, self.heads.head_dim)


def _decode(queries: Tensor, cache: KVCache, group: DecodeGroup, shape: HeadShape, rule: ScoreRule) -> Tensor:
    # Scores are float32, because bfloat16 would round them to 8 bits.
    rows = queries.shape[0]
    kv = cache.by_head.index_select(0, group.pieces).view(2, rows, shape.kv_heads, -1, shape.head_dim)
    q = (queries.float() * rule.scale).view(rows, shape.kv_heads, shape.group, shape.head_dim)
    scores = torch.matmul(q, kv[0].float().mT)  # [rows, kv_heads, group, length]
    if rule.softcap is not None:
        cap_(scores, rule.softcap)
    if group.mask is not None:
        scores += group.mask
    weights = weights_of(scores, rule.sinks).to(kv.dtype)
    return torch.matmul(weights, kv[1]).view(rows, -1)


def _prefill(queries: Tensor, kv: Tensor, chunk: PrefillChunk, shape: HeadShape, rule: ScoreRule) -> Tensor:
    tokens = queries.shape[0]
    requests, size = chunk.requests, tokens // chunk.requests
    # [2, requests, kv_heads, group, length, head_dim]
    kv = kv[:, :, :, None].expand(-1, -1, -1, shape.group, -1, -1)
    q = queries.view(requests, size, shape.kv_heads, shape.group, shape.head_dim).permute(0, 2, 3, 1, 4)
    # Torch expects one dimension less. Only several requests with grouped heads cost a copy.
    k, v, q = (_four_dims(x) for x in (kv[0], kv[1], q))
    if rule.sinks is not None:
        rule = replace(rule, sinks=_four_dims(rule.sinks[..., None].expand(requests, -1, -1, -1, -1)))
    if chunk.mask is None or len(chunk.mask) == size:
        out = _masked_attention(q, k, v, chunk.mask, rule)
    else:
        out = _attention_by_parts(q, k, v, chunk.mask, rule)
    out = out.view(requests, shape.kv_heads, shape.group, size, shape.head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(tokens, -1)


def _four_dims(x: Tensor) -> Tensor:
    # [requests, kv_heads, group, …]
    return x.flatten(0, 1) if x.shape[0] == 1 or x.shape[2] > 1 else x.squeeze(2)


def _attention_by_parts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, rule: ScoreRule) -> Tensor:
    # q [kv_heads, group, tokens, head_dim]; k, v [kv_heads, group, length, head_dim]; mask [queries, length]
    tokens, length, parts = q.shape[2], k.shape[2], []
    for start in range(0, tokens, len(mask)):
        some = q[:, :, start : start + len(mask)]
        end = length - tokens + start + some.shape[2]  # keys that the last query sees
        # GPU kernels require aligned rows of a mask.
        seen = mask[len(mask) - some.shape[2] :, length - end :].contiguous()
        parts.append(_masked_attention(some, k[:, :, :end], v[:, :, :end], seen, rule))
    return torch.cat(parts, dim=2)


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: ScoreRule) -> Tensor:
    # mask None: causal
    if rule.softcap is not None or rule.sinks is not None:
        return _attention_by_scores(q, k, v, mask, rule)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=rule.scale)


def _attention_by_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: ScoreRule) -> Tensor:
    # Torch's attention has no caps and no sinks.
    length = k.shape[2]
    keys = k.float().mT
    parts = []
    for start in range(0, q.shape[2], _QUERIES_AT_ONCE):
        some = q[:, :, start : start + _QUERIES_AT_ONCE].float() * rule.scale
        scores = some @ keys  # [kv_heads, group, some, length]
        if rule.softcap is not None:
            cap_(scores, rule.softcap)
        if mask is None:
            after = torch.ones(some.shape[2], length, dtype=torch.bool, device=q.device).triu_(start + 1)
            scores.masked_fill_(after, -torch.inf)
        else:
            scores += mask[start : start + _QUERIES_AT_ONCE]
        parts.append(weights_of(scores, rule.sinks).to(v.dtype) @ v)
    return torch.cat(parts, dim=2)
