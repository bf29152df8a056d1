"""Attention over a paged KV cache, in plain torch for CPU and GPU alike.

`AttentionPlan` says where the step's K and V are written and who attends to what; `kvasir.worker.inputs` builds it
once per step and every layer follows it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class HeadShape:
    """Query heads share K/V heads in equal groups (GQA, Ainslie et al., 2023)."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


class KVCache:
    """One layer's cache: [num_blocks, 2, kv_heads, block_size, head_dim], K at 0 and V at 1.

    Within a block each head's tokens are contiguous, and so they are when blocks are gathered head by head: matrix
    products over contiguous K and V are what CPUs are fast at (up to 10 times faster in bfloat16 than over
    interleaved heads). The token at position p of a request lies in block `block_table[p // block_size]` at
    `p % block_size`.
    """

    def __init__(self, blocks: Tensor) -> None:
        self.by_token = blocks.permute(0, 3, 1, 2, 4)  # [num_blocks, block_size, 2, kv_heads, head_dim]
        self.by_head = blocks.flatten(0, 2).flatten(1)  # [num_blocks * 2 * kv_heads, block_size * head_dim]
        assert self.by_head.data_ptr() == blocks.data_ptr(), "the cache must be contiguous"


@dataclass(frozen=True)
class DecodeGroup:
    """Requests of similar length with one new token each."""

    tokens: slice
    """Their places in the step."""
    pieces: Tensor  # [2 * rows * kv_heads * blocks] rows of KVCache.by_head, padded with the null block's
    mask: Tensor | None  # [rows, 1, 1, blocks * block_size] float32, added to the scores; None: no padding


@dataclass(frozen=True)
class PrefillChunk:
    """Several new tokens of one request."""

    tokens: slice
    pieces: Tensor | None  # [2 * kv_heads * blocks] as above; None: no earlier tokens, all K and V are in the step
    mask: Tensor | None  # [new tokens, length] added to the scores; None: plainly causal
    length: int
    """Tokens of the context, the new ones included."""


@dataclass(frozen=True)
class AttentionPlan:
    blocks: Tensor  # [T] the block that each token's K and V are written to
    offsets: Tensor  # [T] and the place in it
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillChunk, ...]


def attend(qkv: Tensor, cache: KVCache, plan: AttentionPlan, shape: HeadShape, scale: float) -> Tensor:
    """Write the step's K and V, then attend: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim].

    All K and V are written first, so that requests of one step may share blocks.
    """
    queries = qkv[:, : shape.query_size]
    kv = qkv[:, shape.query_size :].view(-1, 2, shape.kv_heads, shape.head_dim)
    cache.by_token.index_put_((plan.blocks, plan.offsets), kv)
    parts = [_decode(queries[group.tokens], cache, group, shape, scale) for group in plan.decode]
    parts += [
        _prefill(queries[chunk.tokens], kv[chunk.tokens], cache, chunk, shape, scale) for chunk in plan.prefill
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(queries: Tensor, cache: KVCache, group: DecodeGroup, shape: HeadShape, scale: float) -> Tensor:
    """[rows, heads * head_dim], by plain matrix products.

    Scores are float32 whatever the cache's type: as bfloat16 products they would be rounded to 8 bits. The query
    heads of a group stand where a query's positions would: K and V are never repeated.
    """
    rows = queries.shape[0]
    kv = cache.by_head.index_select(0, group.pieces).view(2, rows, shape.kv_heads, -1, shape.head_dim)
    k, v = kv[0], kv[1]  # [rows, kv_heads, length, head_dim], the last block's padding included
    q = queries.float().mul_(scale).view(rows, shape.kv_heads, shape.group, shape.head_dim)
    scores = torch.matmul(q, k.float().mT)  # [rows, kv_heads, group, length]
    if group.mask is not None:
        scores += group.mask
    return torch.matmul(scores.softmax(dim=-1).to(v.dtype), v).view(rows, -1)


def _prefill(
    queries: Tensor, new_kv: Tensor, cache: KVCache, chunk: PrefillChunk, shape: HeadShape, scale: float
) -> Tensor:
    """[new tokens, heads * head_dim], by torch's tiled attention."""
    tokens = queries.shape[0]
    if chunk.pieces is None:
        kv = new_kv.permute(1, 2, 0, 3)
    else:
        kv = cache.by_head.index_select(0, chunk.pieces).view(2, shape.kv_heads, -1, shape.head_dim)
        kv = kv[:, :, : chunk.length]
    # [2, kv_heads, group, length, head_dim]: a group shares its K and V by a stride of 0.
    kv = kv[:, :, None].expand(-1, -1, shape.group, -1, -1)
    q = queries.view(tokens, shape.kv_heads, shape.group, shape.head_dim).permute(1, 2, 0, 3)
    causal = chunk.mask is None
    out = F.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=chunk.mask, is_causal=causal, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(tokens, -1)
