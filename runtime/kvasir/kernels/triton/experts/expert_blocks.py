"""The kernel that sorts rows (token and chosen expert) into blocks of one expert, and how others read a block.

chosen experts        2 0 | 0 2 | 2 1 | 0 2        [T, top_k], flat: the places 0 to 7
places                1 2 6 | 5 | 0 3 4 7          sorted by expert
blocks of 2 rows      1 2, 6 | 5 | 0 3, 4 7        (expert, first row, rows)
"""

import triton
import triton.language as tl


@triton.jit
def _local(chosen, index, num_rows, first_expert, EXPERTS: tl.constexpr):
    # EXPERTS: on another rank, or after the last row
    expert = tl.load(chosen + index, mask=index < num_rows, other=-1) - first_expert
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, EXPERTS).to(tl.int32)


@triton.jit(do_not_specialize=["num_rows", "first_expert"])
def list_blocks(
    places,  # [num_rows] int32; only for this rank's rows
    blocks,  # [most_blocks, BLOCK_NUMBERS] int32: expert, first row in `places`, rows
    num_blocks,  # [1] int32
    chosen,  # [num_rows] int64
    num_rows,
    first_expert,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_NUMBERS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # Grid: (EXPERTS,). Each program counts all rows and lists its own.
    expert = tl.program_id(0)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, num_rows, CHUNK):
        index = start + tl.arange(0, CHUNK)
        counts += tl.histogram(_local(chosen, index, num_rows, first_expert, EXPERTS), BINS)
    bins = tl.arange(0, BINS)
    first_row = tl.sum(tl.where(bins < expert, counts, 0))
    own_rows = tl.sum(tl.where(bins == expert, counts, 0))
    first_block = tl.sum(tl.where(bins < expert, tl.cdiv(counts, ROWS), 0))
    own_blocks = tl.cdiv(own_rows, ROWS)

    written = first_row
    for start in range(0, num_rows, CHUNK):
        index = start + tl.arange(0, CHUNK)
        own = _local(chosen, index, num_rows, first_expert, EXPERTS) == expert
        ones = own.to(tl.int32)
        tl.store(places + written + tl.cumsum(ones, 0) - 1, index, mask=own)
        written += tl.sum(ones)
    for block in range(own_blocks):
        target = blocks + (first_block + block) * BLOCK_NUMBERS
        tl.store(target, expert)
        tl.store(target + 1, first_row + block * ROWS)
        tl.store(target + 2, tl.minimum(own_rows - block * ROWS, ROWS))
    if expert == EXPERTS - 1:
        tl.store(num_blocks, first_block + own_blocks)


@triton.jit
def rows_of_block(blocks, BLOCK_NUMBERS: tl.constexpr, ROWS: tl.constexpr):
    # expert or slot of the program's block, its rows [ROWS], and which of these exist
    block = blocks + tl.program_id(0) * BLOCK_NUMBERS
    places = tl.arange(0, ROWS)
    return tl.load(block).to(tl.int64), tl.load(block + 1) + places, places < tl.load(block + 2)
