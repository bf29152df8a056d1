"""Attention over whole sequences that lie one after the other, causal or not, without a KV cache.

Sequences of one length are computed together, and no padding is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.layers.attention import HeadShape, KVCache, ScoreRule
from kvasir.layers.attention_backends.score_weights import cap_, weights_of
from kvasir.layers.rotary import Rotation, rotate_qk_

# Bounds the scores of one product, if torch makes them: [queries, length] for each head.
_MAX_QUERIES = 1024
# With 12 heads and 8192 tokens, a bias of these queries has 200 MiB, and one of all queries 3 GiB.
MAX_BIASED_QUERIES = 512
# [heads, queries, length], added to the scores of some queries of a sequence of this length.
Bias = Callable[[slice, int], Tensor]


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

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        raise NotImplementedError("without a KV cache, K and V come with the queries")

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        return self.attend_packed(qkv, rule, rotation)

    def attend_packed(
        self, qkv: Tensor, rule: ScoreRule, rotation: Rotation | None = None, bias: Bias | None = None
    ) -> Tensor:
        """Attend: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim]. Changes qkv.

        If not causal, half of the rule's window is on each side.
        """
        heads, window = self.heads, rule.window
        if rotation is not None:
            rotate_qk_(qkv, heads.kv_heads, heads.head_dim, rotation)
        out = qkv.new_empty(self._num_tokens, heads.query_size)
        for alike in self._alike:
            # [sequences, all heads, length, head_dim]
            some = qkv[alike.tokens].view(-1, alike.length, heads.heads + 2 * heads.kv_heads, heads.head_dim)
            q, k, v = some.transpose(1, 2).split((heads.heads, heads.kv_heads, heads.kv_heads), dim=1)
            is_narrow = window is not None and (window if self.causal else window // 2) < alike.length
            mask = self._window(alike.length, window, q) if is_narrow else None
            if bias is None:
                attended = self._attend(q, k, v, mask, rule)
            else:
                attended = self._attend_biased(q, k, v, mask, rule, bias)
            out[alike.tokens] = attended.transpose(1, 2).reshape(-1, heads.query_size)
        return out

    def _attend_biased(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: ScoreRule, bias: Bias
    ) -> Tensor:
        length = q.shape[2]
        parts = []
        for start in range(0, length, MAX_BIASED_QUERIES):
            some = slice(start, min(start + MAX_BIASED_QUERIES, length))
            added = bias(some, length).to(q.dtype)
            if mask is not None:
                added = added.masked_fill(~mask[some], -torch.inf)
            parts.append(self._attend(q[:, :, some], k, v, added, rule))
        return torch.cat(parts, dim=2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: ScoreRule) -> Tensor:
        grouped = self.heads.group > 1
        if rule.softcap is None and rule.sinks is None:
            causal = self.causal and mask is None
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=rule.scale, enable_gqa=grouped
            )
        if grouped:
            k, v = (each.repeat_interleave(self.heads.group, 1) for each in (k, v))
        seen = self._window(q.shape[2], None, q) if mask is None and self.causal else mask
        sinks = None if rule.sinks is None else rule.sinks.view(-1, 1, 1)
        parts = []
        for start in range(0, q.shape[2], _MAX_QUERIES):  # torch's attention has no caps and no sinks
            some = slice(start, start + _MAX_QUERIES)
            scores = (q[:, :, some].float() * rule.scale) @ k.float().mT
            if rule.softcap is not None:
                cap_(scores, rule.softcap)
            if seen is not None:
                scores.masked_fill_(~seen[some], -torch.inf)
            parts.append(weights_of(scores, sinks).to(v.dtype) @ v)
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
