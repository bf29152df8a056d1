"""The rates that this device reaches: memory bandwidth and matrix products."""

import torch
from bench.gpu.timing import Call, median_seconds
from bench.gpu.worker import Context

COPY_BYTES = 4 * 2**30
READ_BYTES = 4 * 2**30
SIZE = 8192


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    _copy(context, 2**20 if context.tiny else COPY_BYTES)
    _read(context, 2**20 if context.tiny else READ_BYTES)
    _multiply(context, 64 if context.tiny else SIZE)


def _copy(context: Context, num_bytes: int) -> None:
    source = torch.empty(num_bytes // 4, dtype=torch.int32, device=context.device).random_()
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), on_gpu=context.on_gpu)
    _report(context, "copy_bytes_per_second", 2 * num_bytes / seconds, "copy, bytes read and written")


def _read(context: Context, num_bytes: int) -> None:
    """Time reductions that write next to nothing. The fastest one shows what the memory can do."""
    numbers = torch.empty(num_bytes // 2, dtype=torch.bfloat16, device=context.device).uniform_(-1, 1)
    vector = torch.ones(4096, dtype=torch.bfloat16, device=context.device)
    words, matrix = numbers.view(torch.int32), numbers.view(-1, 4096)
    calls: dict[str, Call] = {
        "maximum": words.amax,
        "sum": lambda: torch.sum(numbers, dtype=torch.float32),
        "matrix times vector": lambda: matrix @ vector,
    }
    rates = {name: num_bytes / median_seconds(call, on_gpu=context.on_gpu) for name, call in calls.items()}
    context.record("read_rates", rates)
    fastest = max(rates, key=lambda name: rates[name])
    _report(context, "read_bytes_per_second", rates[fastest], f"read, {fastest}")


def _multiply(context: Context, size: int) -> None:
    a, b = (torch.randn(size, size, device=context.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = median_seconds(lambda: a @ b, on_gpu=context.on_gpu)
    flops = 2 * size**3 / seconds
    context.record("matmul_flops", flops)
    context.line(f"ceilings: bf16 matrix product {size}^3: {flops / 1e12:.0f} TFLOP/s")


def _report(context: Context, key: str, rate: float, text: str) -> None:
    context.record(key, rate)
    context.line(f"ceilings: {text}: {rate / 1e9:.0f} GB/s")
