"""Chooses the next token of each row from its logits; filters as in vLLM.

Random rows are a race (Gumbel's trick): the smallest exponential number over probability wins. Unlike a cumulative
distribution, it does not add up rounding errors.
"""

import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import has_kernels
from kvasir.sampling.random import exponential
from kvasir.sampling.random_rows import RandomRows

_CANDIDATES = 1024


def sample(logits: Tensor, random_rows: tuple[RandomRows, ...]) -> Tensor:
    """Return token ids [R] of logits [R, V]; other rows are greedy."""
    if has_kernels(logits.device):
        from kvasir.sampling import triton_sampler  # imports triton

        return triton_sampler.sample(logits, random_rows)
    logits = logits.float()
    chosen = logits.argmax(dim=-1)
    for group in random_rows:
        scaled = logits[group.rows] / group.temperature  # [N, V]
        if group.min_p is not None:
            floor = scaled.amax(dim=-1, keepdim=True) + group.min_p.log()  # [N, 1]
            scaled.masked_fill_(scaled < floor, -torch.inf)
        noise = exponential(group.seeds, group.positions, scaled.shape[1]).log_()  # [N, V]
        if group.top_k is None or group.top_p is None:
            chosen[group.rows] = (scaled - noise).argmax(dim=-1)
        else:
            chosen[group.rows] = _race_filtered(scaled, noise, group.top_k, group.top_p)
    return chosen


def holds_nan(logits: Tensor, chosen: Tensor) -> Tensor:
    # torch orders NaN above all numbers, so `sample` chose it; [R]
    return logits.gather(1, chosen[:, None])[:, 0].isnan()


def _race_filtered(scaled: Tensor, noise: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    # → [N] winners
    if scaled.is_cuda or scaled.shape[1] <= _CANDIDATES:
        return _race(scaled, noise, top_k, top_p, scaled.shape[1])[0]
    winners, enough = _race(scaled, noise, top_k, top_p, _CANDIDATES)
    if not enough.all():
        rest = ~enough
        winners[rest] = _race(scaled[rest], noise[rest], top_k[rest], top_p[rest], scaled.shape[1])[0]
    return winners


def _race(scaled: Tensor, noise: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return [N] winners of `width` tokens, and [N] whether the filters keep no others."""
    vocab = scaled.shape[1]
    if width == vocab:
        ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)  # [N, width]
    else:
        ordered, tokens = scaled.topk(width, dim=-1)
    beyond_k = torch.arange(width, device=scaled.device) >= top_k
    ordered.masked_fill_(beyond_k, -torch.inf)
    within_k = top_k <= width  # [N, 1]
    total = torch.where(within_k, ordered.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    probabilities = (ordered - total).exp_().double()
    # The most likely token always stays, because p is above 0.
    beyond_p = probabilities.cumsum(dim=-1) - probabilities >= top_p
    winner = (ordered.masked_fill_(beyond_p, -torch.inf) - noise.gather(1, tokens)).argmax(dim=-1, keepdim=True)
    enough = within_k | ((top_k >= vocab) & beyond_p[:, -1:])
    return tokens.gather(1, winner)[:, 0], enough[:, 0]
