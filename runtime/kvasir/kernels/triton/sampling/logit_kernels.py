"""Launches the kernels that change logits: checks shapes and types, and gives launches the sizes of sizes.py."""

import torch
import triton
from torch import Tensor

from kvasir.kernels.triton.sampling.logit_changes import change_entries, count_left, forbid_masked, restore_empty
from kvasir.kernels.triton.sampling.sizes import ENTRIES, OPTIONS, PART_TOKENS, num_parts, padded_parts


def mask_rows(logits: Tensor, words: Tensor, rows: Tensor) -> None:
    """Set the logits of masked tokens to -inf. logits: [R, V] float32; words: [N, V / 32] int32; rows: [N] int64"""
    count, vocab = len(rows), logits.shape[1]
    _check(logits, {"rows": (rows, torch.int64), "words": (words, torch.int32)})
    if words.shape != (count, -(-vocab // 32)):
        raise ValueError(f"the kernel does not take masks of shape {list(words.shape)} for {vocab} tokens")
    forbid_masked[count, num_parts(vocab)](
        logits, words, rows, vocab, logits.stride(0), words.shape[1], PART_TOKENS=PART_TOKENS, **OPTIONS
    )


def restore_rows(logits: Tensor, saved: Tensor, rows: Tensor) -> None:
    """Copy the saved logits [N, V] to those of the rows [N] whose logits are all -inf."""
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
    """Add to the logits [R, V] of M entries, none of them twice. rows, tokens: [M] int64; added: [M] float32"""
    _check(logits, {**_entries(rows, tokens), "added": (added, torch.float32)}, len(rows))
    _change(logits, rows, tokens, added, None, None)


def penalise(logits: Tensor, rows: Tensor, tokens: Tensor, repetition: Tensor, taken: Tensor) -> None:
    """Divide positive logits by `repetition`, multiply the others by it, and subtract `taken`. All of them: [M]"""
    floats = {"repetition": (repetition, torch.float32), "taken": (taken, torch.float32)}
    _check(logits, {**_entries(rows, tokens), **floats}, len(rows))
    _change(logits, rows, tokens, None, repetition, taken)


def _change(
    logits: Tensor,
    rows: Tensor,
    tokens: Tensor,
    added: Tensor | None,
    repetition: Tensor | None,
    taken: Tensor | None,
) -> None:
    change_entries[triton.cdiv(len(rows), ENTRIES),](
        logits,
        rows,
        tokens,
        added,
        repetition,
        taken,
        len(rows),
        logits.stride(0),
        ENTRIES=ENTRIES,
        PENALTIES=added is None,
        **OPTIONS,
    )


def _entries(rows: Tensor, tokens: Tensor) -> dict[str, tuple[Tensor, torch.dtype]]:
    return {"rows": (rows, torch.int64), "tokens": (tokens, torch.int64)}


def _check(logits: Tensor, given: dict[str, tuple[Tensor, torch.dtype]], length: int | None = None) -> None:
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"the kernel does not take logits of {logits.dtype} and strides {logits.stride()}")
    for name, (tensor, dtype) in given.items():
        if tensor.dtype != dtype or not tensor.is_contiguous() or (length is not None and len(tensor) != length):
            raise ValueError(f"the kernel does not take {name} of shape {list(tensor.shape)} and {tensor.dtype}")
