"""Launches the kernels that change logits, after checks of shapes and dtypes."""

import torch
import triton
from torch import Tensor

from kvasir.kernels.triton.sampling.logit_changes import (
    add_to_entries,
    count_left,
    forbid_masked,
    penalise_tokens,
    restore_empty,
)
from kvasir.kernels.triton.sampling.sizes import ENTRIES, IN_OUTPUT, OPTIONS, PART_TOKENS, num_parts, padded_parts


def mask_rows(logits: Tensor, words: Tensor, rows: Tensor) -> None:
    """Set forbidden tokens to -inf. logits: [R, V] float32; words: [N, V / 32] int32; rows: [N] int64."""
    count, vocab = len(rows), logits.shape[1]
    _check(logits, {"rows": (rows, torch.int64), "words": (words, torch.int32)})
    if words.shape != (count, -(-vocab // 32)):
        raise ValueError(f"the kernel does not take masks of shape {list(words.shape)} for {vocab} tokens")
    forbid_masked[count, num_parts(vocab)](
        logits, words, rows, vocab, logits.stride(0), words.shape[1], PART_TOKENS=PART_TOKENS, **OPTIONS
    )


def restore_rows(logits: Tensor, saved: Tensor, rows: Tensor) -> None:
    """Restore rows [N] whose logits are all -inf from `saved` [N, V]."""
    count, vocab = len(rows), logits.shape[1]
    _check(logits, {"rows": (rows, torch.int64), "saved": (saved, torch.float32)})
    if saved.shape != (count, vocab):
        raise ValueError(f"the kernel does not take saved logits of shape {list(saved.shape)}")
    left = torch.empty(count, num_parts(vocab), dtype=torch.int32, device=logits.device)
    count_left[left.shape](left, logits, rows, vocab, logits.stride(0), PART_TOKENS=PART_TOKENS, **OPTIONS)
    restore_empty[left.shape](
        logits,
        saved,
        left,
        rows,
        vocab,
        logits.stride(0),
        saved.stride(0),
        left.shape[1],
        PART_TOKENS=PART_TOKENS,
        PADDED_PARTS=padded_parts(vocab),
        **OPTIONS,
    )


def add_bias(logits: Tensor, rows: Tensor, tokens: Tensor, added: Tensor) -> None:
    """Add to M different entries of logits [R, V]. rows, tokens: [M] int64; added: [M] float32."""
    count = len(rows)
    given = {"rows": (rows, torch.int64), "tokens": (tokens, torch.int64), "added": (added, torch.float32)}
    _check(logits, given, count)
    add_to_entries[triton.cdiv(count, ENTRIES),](
        logits, rows, tokens, added, count, logits.stride(0), ENTRIES=ENTRIES, **OPTIONS
    )


def penalise_counted(logits: Tensor, rows: Tensor, slots: Tensor, counts: Tensor, params: Tensor) -> None:
    """Apply penalties to rows [N] by the counts [S, V] and params [S, 3] of their slots [N]."""
    count, vocab = len(rows), logits.shape[1]
    _check(logits, {"rows": (rows, torch.int64), "slots": (slots, torch.int64)}, count)
    _check(logits, {"counts": (counts, torch.int32), "params": (params, torch.float64)}, len(counts))
    if counts.shape[1] != vocab or params.shape[1] != 3:
        raise ValueError(f"the kernel does not take counts of shape {list(counts.shape)} for {vocab} tokens")
    penalise_tokens[count, num_parts(vocab)](
        logits,
        rows,
        slots,
        counts,
        params,
        vocab,
        logits.stride(0),
        counts.stride(0),
        PART_TOKENS=PART_TOKENS,
        IN_OUTPUT=IN_OUTPUT,
        **OPTIONS,
    )


def _check(logits: Tensor, given: dict[str, tuple[Tensor, torch.dtype]], length: int | None = None) -> None:
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"the kernel does not take logits of {logits.dtype} and strides {logits.stride()}")
    for name, (tensor, dtype) in given.items():
        if tensor.dtype != dtype or not tensor.is_contiguous() or (length is not None and len(tensor) != length):
            raise ValueError(f"the kernel does not take {name} of shape {list(tensor.shape)} and {tensor.dtype}")
