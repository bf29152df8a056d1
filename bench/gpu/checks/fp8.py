"""An fp8 KV cache: the bytes that the kernels write, next to torch's, and attention over it in float64."""

from collections.abc import Sequence
from typing import Final

import torch
from bench.gpu.checks.comparison import compare, guarded, report
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep, heads_of
from bench.gpu.worker import Context

from kvasir.kernels.triton.device_support import FP8
from kvasir.layers.attention import KVScales, ScoreRule

STEPS: Final = {
    "decodes": [(37, 1), (90, 1), (0, 1), (255, 1)],
    "a split decode": [(5000, 1), (300, 1), (17, 1)],
    "prompts": [(0, 1), (0, 40), (0, 129), (0, 300)],
    "decodes, a prompt and a chunk": [(37, 1), (90, 1), (0, 40), (21, 19)],
}
TINY_STEPS: Final = {"decodes": [(37, 1), (5, 1)], "decodes, a prompt and a chunk": [(37, 1), (0, 20), (21, 9)]}
# Heads, type, step, window and soft cap.
CASES: Final = (
    ("32x8x128", "bfloat16", "decodes", None, None),
    ("32x8x128", "bfloat16", "a split decode", None, None),
    ("32x8x128", "bfloat16", "prompts", None, None),
    ("32x8x128", "bfloat16", "decodes, a prompt and a chunk", 50, 20.0),
    ("14x2x64", "float16", "decodes, a prompt and a chunk", None, None),
    ("8x4x256", "bfloat16", "decodes, a prompt and a chunk", 100, None),
    ("32x32x80", "bfloat16", "prompts", None, 30.0),
    ("8x8x64", "float32", "decodes, a prompt and a chunk", None, None),
)
# Scales of K and V: some numbers of V exceed 448 times the scale.
SCALES: Final = (0.37, 0.021)


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    steps = TINY_STEPS if context.tiny else STEPS
    with kernels_of(context.device):
        for heads, dtype, title, window, softcap in CASES:
            name = f"{heads} {dtype} {title} window {window} cap {softcap}"
            if title in steps:
                with guarded(context, "attend_paged, fp8", name):
                    _check(context, name, heads, dtype, steps[title], window, softcap)


def _check(
    context: Context,
    name: str,
    heads_text: str,
    dtype_name: str,
    requests: Sequence[tuple[int, int]],
    window: int | None,
    softcap: float | None,
) -> None:
    heads, dtype = heads_of(heads_text), getattr(torch, dtype_name)
    scales = KVScales(*SCALES)
    step = PagedStep(heads, requests, dtype, context.device, window=window, kv_dtype=FP8, scales=scales)
    both = torch.tensor(SCALES, dtype=torch.float64, device=context.device)[:, None, None]
    inverses = torch.tensor([1 / scale for scale in SCALES], device=context.device)[:, None, None]
    generator = torch.Generator(context.device).manual_seed(len(requests))
    count, width = sum(step.lengths), heads.query_size + 2 * heads.kv_size
    draw = torch.randn(count, 2, heads.kv_heads, heads.head_dim, generator=generator, device=context.device)
    kv = (draw * torch.tensor([1.0, 3.0], device=context.device)[:, None, None]).to(dtype)
    stored = (kv.float() * inverses).clamp(-448, 448).to(FP8)  # [all tokens, 2, kv_heads, head_dim]
    new = step._places
    qkv = torch.randn(len(new), width, generator=generator, device=context.device).to(dtype)
    qkv[:, heads.query_size :] = kv[new].flatten(1)

    # Bytes, because not all operations of torch take fp8. 0x7F is NaN.
    places = step._blocks, step._offsets
    content = step.cache.blocks.view(torch.uint8)
    by_token = content.permute(0, 3, 1, 2, 4)
    content.fill_(0x7F)
    by_token[places] = stored.view(torch.uint8)
    by_token[places[0][new], places[1][new]] = 0x7F
    scale = heads.head_dim**-0.5 * 2
    rule = ScoreRule(scale, window, softcap)
    step.plan.write(qkv[:, heads.query_size :], step.cache)
    expected = torch.full_like(content, 0x7F)
    expected.permute(0, 3, 1, 2, 4)[places] = stored.view(torch.uint8)
    differing = int((content != expected).sum())
    context.check("write_kv, fp8", name, float(differing), "bytes differ" if differing else "")

    step.kv = stored.double() * both
    exact = qkv.double()
    exact[:, heads.query_size :] = step.kv[new].flatten(1)
    out = step.plan.attend(qkv[:, : heads.query_size], step.cache, rule)
    report(context, "attend_paged, fp8", name, compare(out, step.attention(exact, scale, softcap), dtype))

    # Rotated K is rounded once, from float32; a sum of another order may round to the next number.
    step.qkv = qkv.clone()
    rotation = step.rotation(heads.head_dim)
    rotated = step.rotated(rotation)[:, heads.query_size :].unflatten(1, (2, heads.kv_heads, -1)) / both
    step.plan.write_and_attend(qkv, step.cache, rule, rotation)
    found = by_token[places[0][new], places[1][new]].contiguous().view(FP8).double()
    limited = rotated.clamp(-448, 448)
    bound = torch.maximum(limited.abs() * 2.0**-4, torch.tensor(2.0**-10, device=context.device)) * 1.01
    wrong = int(((found - limited).abs() > bound).sum())
    problem = "numbers are not the nearest" if wrong else ""
    context.check("rotate_and_write, fp8", name, float(wrong), problem)
