"""Times the products of a layer with bfloat16 and quantised weights, next to the bound that memory sets.

    python bench/quantised_products.py
    python bench/quantised_products.py --models 8b --rows 1,128 --forms bfloat16,int4 --rounds 9

One thread, whose CPU time other processes change less than the time on the clock. The forms alternate; the figures
are medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch import Tensor

from kvasir.config.hardware.machine import cpu_name
from kvasir.layers.linear_method import PackedMethod, unquantised_method
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.product import new_product
from kvasir.layers.quantised.weight import QuantisedWeight

# Outputs and inputs of a layer: qkv, o, gate and up, down.
MODELS = {
    "0.5b": ((1152, 896), (896, 896), (9728, 896), (896, 4864)),  # Qwen2.5-0.5B
    "8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),  # Llama-3.1-8B
}
FORMS = ("bfloat16", "int8", "int8-inputs", "fp8", "int4", "int4-32")
MIN_BYTES = 128 * 2**20  # of weights that are read in turn, more than the caches hold
CPU = Placement(torch.device("cpu"), torch.bfloat16)

Product = Callable[[Tensor], Tensor]


def seconds(run: Callable[[], object]) -> float:
    begun = time.thread_time()
    run()
    return time.thread_time() - begun


def new_weight(form: str, outputs: int, inputs: int) -> tuple[Product, int]:
    # A product and the bytes that it reads.
    if form == "bfloat16":
        return bfloat16(outputs, inputs), outputs * inputs * 2
    four_bits = form.startswith("int4")
    group = {"int4": 128, "int4-32": 32}.get(form, inputs)
    numbers = torch.randint(1, 127, (outputs, inputs // 2 if four_bits else inputs), dtype=torch.uint8)
    dtype = {"int8": torch.int8, "int8-inputs": torch.int8, "fp8": torch.float8_e4m3fn}.get(form, torch.uint8)
    scales = torch.rand(outputs, inputs // group).half().float()
    zeros = torch.full_like(scales, 7, dtype=torch.uint8) if four_bits else None
    product = new_product(
        QuantisedWeight(numbers.view(dtype), scales, zeros, quantise_inputs=form == "int8-inputs"), CPU
    )
    return product, numbers.nbytes + scales.numel() * (3 if four_bits else 2)


def bfloat16(outputs: int, inputs: int) -> Product:
    layer, method = torch.nn.Module(), unquantised_method(CPU)
    if not isinstance(method, PackedMethod):
        raise SystemExit("this processor has no fast products of bfloat16")
    layer.weight = torch.nn.Parameter(torch.randn(outputs, inputs).bfloat16(), requires_grad=False)
    method.finish(layer)
    return lambda x: method.apply(layer, x, None)


def new_layers(model: str, form: str) -> tuple[Iterator[list[Product]], int]:
    # Layers without an end, and the bytes of each.
    layers: list[list[Product]] = []
    size = 0
    while not layers or size * len(layers) < MIN_BYTES:
        weights = [new_weight(form, *shape) for shape in MODELS[model]]
        size = sum(read for _, read in weights)
        layers.append([product for product, _ in weights])
    return cycle(layers), size


def read_bandwidth() -> float:
    memory = torch.ones(2**26)
    return memory.nbytes / min(seconds(memory.sum) for _ in range(8))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="0.5b,8b")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--rows", default="1,4,16,128")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bandwidth = read_bandwidth()
    print(f"{cpu_name()}, one thread, memory read {bandwidth / 1e9:.1f} GB/s")
    for model in args.models.split(","):
        forms = {form: new_layers(model, form) for form in args.forms.split(",")}
        inputs = {shape[1]: torch.randn(512, shape[1]).bfloat16() for shape in MODELS[model]}
        for rows in map(int, args.rows.split(",")):
            x = [inputs[shape[1]][:rows] for shape in MODELS[model]]
            times: dict[str, list[float]] = {form: [] for form in forms}
            for _ in range(args.rounds):
                for form, (layers, _) in forms.items():
                    pairs = list(zip(next(layers), x, strict=True))
                    times[form].append(seconds(lambda pairs=pairs: [product(each) for product, each in pairs]))  # type: ignore[misc]
            for form, (_, size) in forms.items():
                median = statistics.median(times[form])
                share = size / bandwidth / median
                figures = f"{median * 1e3:8.2f} ms a layer, {share:4.0%} of the bound"
                print(f"{model:5} {rows:4} rows {form:12} {figures}")


if __name__ == "__main__":
    main()
