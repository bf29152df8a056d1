"""Attention over a paged KV cache: by a kernel on CPU, in plain torch elsewhere and for shapes it does not take.

`AttentionPlan` holds where the step's K and V are written and which tokens attend to which;
`kvasir.worker.batch.inputs` builds it once per step and every layer follows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels.cpu import Kernels, PagedStep

_CAPPED_QUERIES = 256
"""Queries of a prefill whose capped scores are held in memory at once."""


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

    def kv_bytes(self, dtype: torch.dtype) -> int:
        """Of a token in one layer."""
        return 2 * self.kv_size * dtype.itemsize


class KVCache:
    """One layer's cache: [num_blocks, 2, kv_heads, block_size, head_dim], K at 0 and V at 1.

    Within a block each head's tokens are contiguous, and so they are when blocks are gathered head by head: matrix
    products over contiguous K and V are what CPUs are fast at (up to 10 times faster in bfloat16 than over
    interleaved heads). The token at position p of a request lies in block `block_table[p // block_size]` at
    `p % block_size`.

    `group`: the KV group that the layer belongs to. Layers of one group share the block tables of the requests.
    """

    def __init__(self, blocks: Tensor, group: int = 0) -> None:
        self.blocks = blocks
        self.group = group
        self.by_token = blocks.permute(0, 3, 1, 2, 4)  # [num_blocks, block_size, 2, kv_heads, head_dim]
        self.by_head = blocks.flatten(0, 2).flatten(1)  # [num_blocks * 2 * kv_heads, block_size * head_dim]
        assert self.by_head.data_ptr() == blocks.data_ptr(), "the cache must be contiguous"


@dataclass(frozen=True)
class DecodeGroup:
    """Requests of similar length with one new token each."""

    tokens: slice
    """Their places in the step."""
    pieces: Tensor  # [2 * rows * kv_heads * blocks] rows of KVCache.by_head, padded with each row's last block
    mask: Tensor | None  # [rows, 1, 1, blocks * block_size] float32, added to the scores; None: no padding


@dataclass(frozen=True)
class PrefillChunk:
    """Several new tokens of one request; or of several requests with as many tokens each and none before them."""

    tokens: slice
    requests: int
    pieces: Tensor | None  # [2 * kv_heads * blocks] as above; None: no earlier tokens, all K and V are in the step
    mask: Tensor | None  # [new tokens, length] added to the scores; None: plainly causal
    length: int
    """Tokens that the mask spans: those read from the cache and the new ones."""


@dataclass(frozen=True)
class GatherPlan:
    """For plain torch: K and V are copied out of the cache, for requests of similar length at once."""

    blocks: Tensor  # [T] the block that each token's K and V are written to
    offsets: Tensor  # [T] and the place in it
    begun: Tensor | None
    """[B] blocks that this step begins and does not fill; None: there are none. They still hold what their last
    owner wrote, and attention multiplies the places behind a context by 0: a NaN there would be its neighbour's."""
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillChunk, ...]
    windows: Mapping[int, "GatherPlan"]
    """Plans of the layers with a sliding window, by its length, where a context of this step is longer."""

    def within(self, window: int | None) -> "GatherPlan":
        """The plan of layers that see the last `window` tokens only (None: all)."""
        return self if window is None else self.windows.get(window, self)


@dataclass(frozen=True)
class TilePlan:
    """For the CPU's kernel, which reads the cache where it lies."""

    kernels: Kernels
    step: PagedStep
    arrays: tuple[object, ...]
    """What `step` points to."""


AttentionPlan = GatherPlan | TilePlan


def attend(
    qkv: Tensor,
    cache: KVCache,
    plan: AttentionPlan,
    shape: HeadShape,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Write the step's K and V, then attend: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim].

    All K and V are written first, so that requests of one step may share blocks. Each token sees the last `window`
    ones. `softcap` bounds the scores before the mask, as softcap * tanh(score / softcap).
    """
    if isinstance(plan, TilePlan):
        return plan.kernels.attend(plan.step, qkv, cache.blocks, window, scale, softcap)
    return _gather_and_attend(qkv, cache, plan.within(window), shape, scale, softcap)


def _gather_and_attend(
    qkv: Tensor, cache: KVCache, plan: GatherPlan, shape: HeadShape, scale: float, softcap: float | None
) -> Tensor:
    queries = qkv[:, : shape.query_size]
    kv = qkv[:, shape.query_size :].view(-1, 2, shape.kv_heads, shape.head_dim)
    if plan.begun is not None:
        cache.blocks.index_fill_(0, plan.begun, 0)
    cache.by_token.index_put_((plan.blocks, plan.offsets), kv)
    parts = [_decode(queries[group.tokens], cache, group, shape, scale, softcap) for group in plan.decode]
    parts += [
        _prefill(queries[chunk.tokens], kv[chunk.tokens], cache, chunk, shape, scale, softcap)
        for chunk in plan.prefill
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    queries: Tensor, cache: KVCache, group: DecodeGroup, shape: HeadShape, scale: float, softcap: float | None
) -> Tensor:
    """[rows, heads * head_dim], by plain matrix products.

    Scores are float32 whatever the cache's type: as bfloat16 products they would be rounded to 8 bits. The query
    heads of a group stand where a query's positions would: K and V are never repeated.
    """
    rows = queries.shape[0]
    kv = cache.by_head.index_select(0, group.pieces).view(2, rows, shape.kv_heads, -1, shape.head_dim)
    q = (queries.float() * scale).view(rows, shape.kv_heads, shape.group, shape.head_dim)
    scores = torch.matmul(q, kv[0].float().mT)  # [rows, kv_heads, group, length], the last block's padding included
    if softcap is not None:
        _cap_(scores, softcap)
    if group.mask is not None:
        scores += group.mask
    weights = scores.softmax(dim=-1).to(kv.dtype)
    return torch.matmul(weights, kv[1]).view(rows, -1)


def _prefill(
    queries: Tensor,
    new_kv: Tensor,
    cache: KVCache,
    chunk: PrefillChunk,
    shape: HeadShape,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """[new tokens, heads * head_dim], by torch's tiled attention."""
    tokens = queries.shape[0]
    requests, size = chunk.requests, tokens // chunk.requests
    if chunk.pieces is None:
        kv = new_kv.view(requests, size, 2, shape.kv_heads, shape.head_dim).permute(2, 0, 3, 1, 4)
    else:
        kv = cache.by_head.index_select(0, chunk.pieces).view(2, 1, shape.kv_heads, -1, shape.head_dim)
        kv = kv[:, :, :, : chunk.length]
    # [2, requests, kv_heads, group, length, head_dim]: a group shares its K and V by a stride of 0.
    kv = kv[:, :, :, None].expand(-1, -1, -1, shape.group, -1, -1)
    q = queries.view(requests, size, shape.kv_heads, shape.group, shape.head_dim).permute(0, 2, 3, 1, 4)
    # Torch expects one dimension less. For a single request nothing is copied; for several K and V are, if shared.
    k, v, q = (x.flatten(0, 1) if requests == 1 or shape.group > 1 else x.squeeze(-3) for x in (kv[0], kv[1], q))
    if softcap is None:
        causal = chunk.mask is None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=chunk.mask, is_causal=causal, scale=scale)
    else:
        out = _capped_attention(q, k, v, chunk.mask, scale, softcap)
    out = out.view(requests, shape.kv_heads, shape.group, size, shape.head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(tokens, -1)


def _capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """What torch's attention cannot do: cap the scores. Some queries at a time, to bound the scores' memory.

    q: [kv_heads, group, tokens, head_dim]; k, v: [kv_heads, group, length, head_dim]; mask None: causal.
    """
    length = k.shape[2]
    keys = k.float().mT
    parts = []
    for start in range(0, q.shape[2], _CAPPED_QUERIES):
        some = q[:, :, start : start + _CAPPED_QUERIES].float() * scale
        scores = _cap_(some @ keys, softcap)  # [kv_heads, group, some, length]
        if mask is None:
            after = torch.ones(some.shape[2], length, dtype=torch.bool, device=q.device).triu_(start + 1)
            scores.masked_fill_(after, -torch.inf)
        else:
            scores += mask[start : start + _CAPPED_QUERIES]
        parts.append(scores.softmax(dim=-1).to(v.dtype) @ v)
    return torch.cat(parts, dim=2)


def _cap_(scores: Tensor, softcap: float) -> Tensor:
    return scores.div_(softcap).tanh_().mul_(softcap)
