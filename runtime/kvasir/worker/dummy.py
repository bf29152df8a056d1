"""Dummy requests for memory profiling and to warm up, whose KV is the null block."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvasir.config.resolve import ResolvedEngine
from kvasir.layers.kv import KVGroup, keeps_own_cache
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import NO_NEW_BLOCKS, NewRow, ScheduledRow, StepInput

_EVERYTHING = SamplingParams(
    max_tokens=1,
    seed=0,
    top_p=0.9,
    top_k=50,
    min_p=0.01,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    logprobs=1,
    prompt_logprobs=1,
)
_KINDS: Final = (
    SamplingParams(max_tokens=2, seed=0, temperature=0.0),
    SamplingParams(max_tokens=2, seed=0),
    SamplingParams(max_tokens=2, seed=0, top_p=0.9),
    SamplingParams(max_tokens=2, seed=0, min_p=0.1),
    SamplingParams(max_tokens=2, seed=0, top_k=20, min_p=0.1),
    SamplingParams(max_tokens=2, seed=0, temperature=0.0, presence_penalty=0.1),
    SamplingParams(max_tokens=2, seed=0, top_p=0.9, presence_penalty=0.1),
    SamplingParams(max_tokens=2, seed=0, logit_bias=((0, 1.0),)),
    SamplingParams(max_tokens=2, seed=0, temperature=0.0, logit_bias=((0, 1.0),)),
)


def kernel_steps(context: int, requests: int, groups: Sequence[KVGroup]) -> Iterator[StepInput]:
    # Compile all kernels of a GPU: all kinds of sampling; split attention; decodes with a tile of their own.
    for params in _KINDS:
        yield from dummy_steps(1, min(2, context), decodes=0, groups=groups, params=params)
    yield from longest_chunk(min(16, context), context, groups)
    if context > 1:
        yield from dummy_steps(requests, 1, decodes=1, groups=groups, params=_KINDS[0])


def longest_chunk(tokens: int, context: int, groups: Sequence[KVGroup]) -> list[StepInput]:
    name = "dummy-long"
    blocks = [[0] * -(-context // group.spec.block.block_size) for group in groups]
    row = NewRow(name, packed([0] * context), context, SamplingParams(max_tokens=1, seed=0))
    chunk = StepInput(finished=[], new=[row], scheduled=[ScheduledRow(name, context - tokens, tokens, blocks)])
    return [chunk, StepInput(finished=[name], new=[], scheduled=[])]


def most_drafted_rows(settings: ResolvedEngine, groups: Sequence[KVGroup]) -> int:
    # 0 if the engine has no drafts
    speculation = settings.speculation
    if speculation is None or keeps_own_cache(groups):
        return 0
    return min(speculation.max_step_rows, settings.max_num_batched_tokens, settings.max_model_len - 1)


def drafted_steps(rows: int, groups: Sequence[KVGroup]) -> list[StepInput]:
    """Return steps of one request, of which the second samples after `rows` tokens."""
    name = "dummy-drafted"
    blocks = [[0] * -(-(1 + rows) // group.spec.block.block_size) for group in groups]
    return [
        StepInput([], [NewRow(name, packed([0]), 1, _EVERYTHING)], [ScheduledRow(name, 0, 1, blocks)]),
        StepInput([], [], [ScheduledRow(name, 1, rows, NO_NEW_BLOCKS, (0,) * (rows - 1))]),
        StepInput([name], [], []),
    ]


def dummy_steps(
    requests: int,
    tokens: int,
    decodes: int,
    groups: Sequence[KVGroup],
    params: SamplingParams = _EVERYTHING,
) -> list[StepInput]:
    """Return a prefill of `tokens` for each request, decodes, and a step that frees the rows."""
    names = [f"dummy-{index}" for index in range(requests)]
    num_blocks = -(-(tokens + decodes) // groups[0].spec.block.block_size)
    prompt = packed([0] * tokens)
    prefill = StepInput(
        finished=[],
        new=[NewRow(name, prompt, tokens, params) for name in names],
        scheduled=[ScheduledRow(name, 0, tokens, [[0] * num_blocks for _ in groups]) for name in names],
    )
    decode = [
        StepInput([], [], [ScheduledRow(name, tokens + step, 1, NO_NEW_BLOCKS) for name in names])
        for step in range(decodes)
    ]
    return [prefill, *decode, StepInput(finished=names, new=[], scheduled=[])]
