"""One line about the products of a model."""

from collections.abc import Iterable

from torch import nn

from kvasir.layers.linear import Linear, StackedLinear
from kvasir.layers.quantised.parts_method import parts_of
from kvasir.layers.quantised.product import DequantisedProduct


def describe_products(modules: Iterable[nn.Module], advice: str = "") -> str:
    """Return how many layers have a kernel, and which ones are dequantised in each step, with advice."""
    with_kernel, without = 0, []
    for module in modules:
        if not isinstance(module, Linear | StackedLinear):
            continue
        layers = module.layers() if isinstance(module, StackedLinear) else [module]
        holders = [part.__dict__ for layer in layers for part in parts_of(layer)]
        products = [holder["product"] for holder in holders if "product" in holder]
        if any(isinstance(product, DequantisedProduct) for product in products):
            without.append(module.name)
        elif products:
            with_kernel += 1
    if not without:
        return f"{with_kernel} quantised layers, all with kernels for this device"
    if not with_kernel:
        slow = "all dequantised in each step: this device has no kernel for them"
        return f"{len(without)} quantised layers, {slow}{advice}"
    some = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
    return (
        f"{with_kernel} quantised layers with kernels for this device, and {len(without)} that are dequantised in "
        f"each step ({some}){advice}"
    )
