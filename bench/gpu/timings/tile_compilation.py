"""Compiles the kernels of all candidates in processes side by side, into the cache of Triton."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final

import torch
from bench.gpu.timings.tile_candidates import Candidates

from kvasir.kernels.triton.row_tiling import RowTile, row_constants
from kvasir.kernels.triton.tiling import MIN_ROWS, OPTIONS, AttentionTile, PagedShape, attend_constants
from kvasir.layers.attention import HeadShape

DTYPE: Final = torch.bfloat16
# Each takes memory of the device.
_MAX_JOBS: Final = 15
# A number of a launch: kernels are compiled for multiples of 16.
_SIZE: Final = 4096


@dataclass(frozen=True)
class _RowJob:
    # Fused after the product: norm, add or gate.
    form: str
    tile: RowTile


@dataclass(frozen=True)
class _AttentionJob:
    heads: HeadShape
    tile: AttentionTile


def compile_all(candidates: Candidates) -> int:
    # Returns the number of kernels.
    jobs = list(_jobs(candidates))
    most = max(1, min(_MAX_JOBS, len(os.sched_getaffinity(0)) - 1))
    with ProcessPoolExecutor(most, mp_context=get_context("spawn")) as pool:
        return len(list(pool.map(_compile, jobs)))


def _jobs(candidates: Candidates) -> Iterator[_RowJob | _AttentionJob]:
    for tile in candidates.prefills:
        yield _AttentionJob(candidates.heads, tile)
    for decode in candidates.decodes:
        yield _AttentionJob(candidates.heads, decode.of_rows(MIN_ROWS))
    for row_tile in candidates.rows:
        for form in ("norm", "add", "gate"):
            yield _RowJob(form, row_tile)


def _compile(job: _RowJob | _AttentionJob) -> None:
    # A kernel that cannot be compiled is reported when it is timed.
    torch.cuda.init()
    try:
        if isinstance(job, _RowJob):
            _compile_row(job)
        else:
            _compile_attention(job)
    except Exception:
        return


def _compile_row(job: _RowJob) -> None:
    from kvasir.kernels.triton.few_rows.row_product import multiply_row

    constants = row_constants(
        job.tile,
        normed=job.form != "add",
        activation="silu" if job.form == "gate" else "",
        adds=job.form == "add",
        biased=False,
        even=True,
    )
    numbers = (_SIZE, _SIZE, 1e-5, 0.0, _SIZE, _SIZE)
    multiply_row.warmup(*[DTYPE] * 5, *numbers, grid=(1,), **constants, num_warps=job.tile.num_warps, **OPTIONS)


def _compile_attention(job: _AttentionJob) -> None:
    from kvasir.kernels.triton.paged_attention import attend_paged

    heads, tile = job.heads, job.tile
    shape = PagedShape(heads.heads, heads.kv_heads, heads.head_dim, block_size=16)
    constants = attend_constants(shape, tile, windowed=False, capped=False, exact=False, interpreted=False)
    types = [DTYPE] * 3 + [torch.int32] * 2 + [torch.float32] * 4
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, **OPTIONS}
    attend_paged.warmup(*types, 0.5, 0.5, 1.0, 0, _SIZE, grid=(1,), **constants, **options)
