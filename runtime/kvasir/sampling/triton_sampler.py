"""Chooses tokens with Triton kernels, as sampler.py does in torch."""

import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import log_unproven
from kvasir.kernels.triton.sampling.sampling_kernels import LOGIT_TYPES, Draw, choose_largest, draw
from kvasir.sampling.random_rows import RandomRows


def sample(logits: Tensor, random_rows: tuple[RandomRows, ...]) -> Tensor:
    log_unproven(logits.device)
    if logits.dtype not in LOGIT_TYPES or logits.stride(-1) != 1:
        logits = logits.float().contiguous()
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    if sum(len(group.rows) for group in random_rows) < len(logits):
        choose_largest(logits, chosen)  # also rows that are drawn below
    for group in random_rows:
        draw(logits, chosen, _draw(group))
    return chosen


def _draw(group: RandomRows) -> Draw:
    is_filtered = group.top_k is not None and group.top_p is not None
    return Draw(
        rows=group.rows,
        temperature=group.temperature.flatten(),
        seeds=group.seeds,
        positions=group.positions,
        top_k=group.top_k.flatten() if is_filtered and group.top_k is not None else None,
        top_p=group.top_p.flatten() if is_filtered and group.top_p is not None else None,
        log_min_p=None if group.min_p is None else group.min_p.log().flatten(),
    )
