"""Attention over whole sequences that lie one after the other, causal or not, without a KV cache.

Sequences of one length are computed together, and no padding is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.layers.attention import HeadShape, KVCache
from kvasir.layers.rotary import Rotation, rotate_qk_

# Bounds the scores of one product, if torch makes them: [queries, length] for each head.
_MAX_QUERIES = 1024
# [heads, length, length], added to the scores of a sequence of this length.
Bias = Callable[[int], Tensor]


@dataclass(frozen=True)
class _Alike:
    """Sequences of one length."""

    length: int
    tokens: slice | Tensor  # a Tensor [sequences * length] if they are not neighbours


class PackedPlan:
    """An AttentionPlan of one step, for all layers. `lengths`: tokens of each sequence."""

    def __init__(
        self, lengths: Sequence[int], heads: HeadShape, *, causal: bool, device: torch.device | None = None
    ) -> None:
        self.heads = heads
        self.causal = causal
        self._num_tokens = sum(lengths)
        self._alike = _grouped(lengths, device)

    def write(self, kv: Tensor, cache: KVCache) -> None:
        raise NotImplementedError("without a KV cache, nothing reads K and V later")

    def attend(
        self,
        q: Tensor,
        cache: KVCache,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        raise NotImplementedError("without a KV cache, K and V come with the queries")

    def write_and_attend(
        self,
        qkv: Tensor,
        cache: KVCache,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        rotation: Rotation | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return self.attend_packed(qkv, scale, window=window, softcap=softcap, rotation=rotation, sinks=sinks)

    def attend_packed(
        self,
        qkv: Tensor,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        rotation: Rotation | None = None,
        bias: Bias | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim]. Changes qkv.

        `window`: tokens that a query reads: the last ones, itself included; if not causal, half on each side.
        """
        heads = self.heads
        if rotation is not None:
            rotate_qk_(qkv, heads.kv_heads, heads.head_dim, rotation)
        out = qkv.new_empty(self._num_tokens, heads.query_size)
        for alike in self._alike:
            # [sequences, all heads, length, head_dim]
            some = qkv[alike.tokens].view(-1, alike.length, heads.heads + 2 * heads.kv_heads, heads.head_dim)
            q, k, v = some.transpose(1, 2).split((heads.heads, heads.kv_heads, heads.kv_heads), dim=1)
            is_narrow = window is not None and (window if self.causal else window // 2) < alike.length
            mask = self._window(alike.length, window, q) if is_narrow else None
            if bias is not None:
                added = bias(alike.length).to(q.dtype)
                mask = added if mask is None else added.masked_fill(~mask, -torch.inf)
            attended = self._attend(q, k, v, mask, scale, softcap, sinks)
            out[alike.tokens] = attended.transpose(1, 2).reshape(-1, heads.query_size)
        return out

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        grouped = self.heads.group > 1
        if softcap is None and sinks is None:
            causal = self.causal and mask is None
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
            )
        if grouped:
            k, v = (each.repeat_interleave(self.heads.group, 1) for each in (k, v))
        seen = self._window(q.shape[2], None, q) if mask is None and self.causal else mask
        parts = []
        for start in range(0, q.shape[2], _MAX_QUERIES):  # torch's attention has no caps and no sinks
            some = slice(start, start + _MAX_QUERIES)
            scores = (q[:, :, some].float() * scale) @ k.float().mT
            if softcap is not None:
                scores = scores.div_(softcap).tanh_().mul_(softcap)
            if seen is not None:
                scores.masked_fill_(~seen[some], -torch.inf)
            if sinks is not None:
                scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)), dim=-1)
            parts.append(scores.softmax(dim=-1)[..., : k.shape[2]].to(v.dtype) @ v)
        return torch.cat(parts, dim=2)

    def _window(self, length: int, window: int | None, like: Tensor) -> Tensor:
        # [length, length], True for the keys that a query reads
        places = torch.arange(length, device=like.device)
        back = places[:, None] - places  # from the query to the key
        if self.causal:
            return (back >= 0) & (back < (length if window is None else window))
        return back.abs() <= (length if window is None else window // 2)


def _grouped(lengths: Sequence[int], device: torch.device | None) -> list[_Alike]:
    starts: dict[int, list[int]] = {}
    place = 0
    for length in lengths:
        starts.setdefault(length, []).append(place)
        place += length
    return [_Alike(length, _tokens(length, each, device)) for length, each in starts.items()]


def _tokens(length: int, starts: list[int], device: torch.device | None) -> slice | Tensor:
    if starts[-1] - starts[0] == length * (len(starts) - 1):
        return slice(starts[0], starts[-1] + length)
    return (torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)).flatten()
