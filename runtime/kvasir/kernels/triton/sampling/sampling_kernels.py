"""Launches the sampling kernels, after checks of shapes and dtypes."""

from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from kvasir.kernels.triton.sampling.filters import find_limits, scale_rows
from kvasir.kernels.triton.sampling.race import pick_tokens, race_tokens
from kvasir.kernels.triton.sampling.sizes import (
    OPTIONS,
    SEARCH_WARPS,
    limit_constants,
    num_parts,
    pick_constants,
    race_constants,
    scale_constants,
)

# Triton's interpreter runs the kernels on a CPU.
INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
LOGIT_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Draw:
    """N rows that draw at random (kvasir.sampling.sampler.RandomRows)."""

    rows: Tensor
    temperature: Tensor
    seeds: Tensor
    positions: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None  # None if and only if top_k is
    log_min_p: Tensor | None = None


@dataclass(frozen=True)
class Limits:
    """The limits of N rows (filters.py)."""

    keys: Tensor  # [N] int32
    ids: Tensor  # [N] int32
    scaled: Tensor | None  # [N, V] float32


def choose_largest(logits: Tensor, chosen: Tensor) -> None:
    """Write the token with the largest logit of each row: [R, V] → [R] int64."""
    _check_logits(logits, chosen)
    best = _race(logits, len(logits), None, None)
    constants = pick_constants(logits.shape[1], indexed=False)
    pick_tokens[len(logits),](chosen, best, best, best.shape[1], **constants, **OPTIONS)


def draw(logits: Tensor, chosen: Tensor, of: Draw) -> None:
    """Write the tokens that rows draw: [R, V] → [R] int64.

    Raises ValueError for other dtypes and strides.
    """
    _check_logits(logits, chosen)
    _check_draw(of)
    best = _race(logits, len(of.rows), of, row_limits(logits, of))
    constants = pick_constants(logits.shape[1], indexed=True)
    pick_tokens[len(of.rows),](chosen, best, of.rows, best.shape[1], **constants, **OPTIONS)


def _race(logits: Tensor, count: int, of: Draw | None, limits: Limits | None) -> Tensor:
    # the best candidates [count, parts]
    vocab = logits.shape[1]
    best = torch.empty(count, num_parts(vocab), dtype=torch.int64, device=logits.device)
    scaled = None if limits is None else limits.scaled
    numbers = logits if scaled is None else scaled
    race_tokens[best.shape](
        best,
        numbers,
        None if of is None or scaled is not None else of.rows,
        None if of is None or scaled is not None else of.temperature,
        None if of is None else of.seeds,
        None if of is None else of.positions,
        None if limits is None else limits.keys,
        None if limits is None else limits.ids,
        vocab,
        numbers.stride(0),
        **race_constants(
            random=of is not None,
            scaled=scaled is not None,
            limited=limits is not None,
            interpreted=INTERPRETED,
        ),
        **OPTIONS,
    )
    return best


def row_limits(logits: Tensor, of: Draw) -> Limits | None:
    if of.top_k is None and of.log_min_p is None:
        return None
    count, vocab, device = len(of.rows), logits.shape[1], logits.device
    scaled = None if of.top_k is None else torch.empty(count, vocab, dtype=torch.float32, device=device)
    scaled_stride = 0 if scaled is None else scaled.stride(0)
    largest = torch.empty(count, num_parts(vocab), dtype=torch.int32, device=device)
    keys, ids = (torch.empty(count, dtype=torch.int32, device=device) for _ in range(2))
    scale_rows[largest.shape](
        scaled,
        largest,
        logits,
        of.rows,
        of.temperature,
        vocab,
        logits.stride(0),
        scaled_stride,
        **scale_constants(stored=scaled is not None),
        **OPTIONS,
    )
    find_limits[count,](
        keys,
        ids,
        scaled,
        largest,
        of.log_min_p,
        of.top_k,
        of.top_p,
        vocab,
        scaled_stride,
        largest.shape[1],
        **limit_constants(vocab, floored=of.log_min_p is not None, filtered=of.top_k is not None),
        num_warps=SEARCH_WARPS,
        **OPTIONS,
    )
    return Limits(keys, ids, scaled)


def _check_logits(logits: Tensor, chosen: Tensor) -> None:
    if logits.dtype not in LOGIT_TYPES or logits.stride(1) != 1:
        raise ValueError(f"the kernel does not take logits of {logits.dtype} and strides {logits.stride()}")
    if chosen.dtype != torch.int64 or chosen.shape != logits.shape[:1] or not chosen.is_contiguous():
        raise ValueError(f"the kernel does not write to tokens of shape {list(chosen.shape)} and {chosen.dtype}")


def _check_draw(of: Draw) -> None:
    expected = {
        "rows": (of.rows, torch.int64),
        "temperature": (of.temperature, torch.float32),
        "seeds": (of.seeds, torch.int64),
        "positions": (of.positions, torch.int64),
        "top_k": (of.top_k, torch.int64),
        "top_p": (of.top_p, torch.float64),
        "log_min_p": (of.log_min_p, torch.float32),
    }
    for name, (tensor, dtype) in expected.items():
        if tensor is None:
            continue
        if tensor.dtype != dtype or tensor.shape != of.rows.shape or not tensor.is_contiguous():
            raise ValueError(f"the kernel does not take {name} of shape {list(tensor.shape)} and {tensor.dtype}")
    if (of.top_k is None) != (of.top_p is None):
        raise ValueError("top_k and top_p must be given together")
