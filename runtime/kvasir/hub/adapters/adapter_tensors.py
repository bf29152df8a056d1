"""AdaptedModule: the pairs of matrices in an adapter's weights, by module of the model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir.hub.adapters.adapter_config import AdapterConfig
from kvasir.hub.hub_errors import HubError
from kvasir.hub.safetensors_file import tensor_shapes

WEIGHTS_FILE: Final = "adapter_model.safetensors"
_NAME: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")


@dataclass(frozen=True)
class AdaptedModule:
    """A product that is added to a linear layer's: scaling B A x, with A [rank, inputs] and B [outputs, rank]."""

    rank: int
    scaling: float
    inputs: int
    outputs: int


def tensor_name(module: str, part: str) -> str:
    """Return the name of A or B in the file."""
    return f"base_model.model.{module}.lora_{part}.weight"


def read_modules(path: Path, config: AdapterConfig) -> Mapping[str, AdaptedModule]:
    """Return the adapted modules by name in the model, such as model.layers.0.self_attn.q_proj.

    Raises HubError.
    """
    file = path / WEIGHTS_FILE
    return modules_of(file, tensor_shapes(file) if file.exists() else None, config)


def modules_of(
    file: Path, shapes: Mapping[str, tuple[int, ...]] | None, config: AdapterConfig
) -> Mapping[str, AdaptedModule]:
    """Return the modules by these shapes of tensors; None: there is no file. Raises HubError."""
    if shapes is None:
        raise HubError(
            f"{file.parent} has no {WEIGHTS_FILE}: save the adapter again with PEFT's save_pretrained, which "
            "writes it"
        )
    pairs: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise HubError(f"{file}: the tensor {name} is not supported: {_advice(name)}")
        pairs.setdefault(found["module"], {})[found["part"]] = shape
    if not pairs:
        raise HubError(f"{file} has no tensors: save the adapter again")
    return {module: _module(file, module, pair, config) for module, pair in sorted(pairs.items())}


def _module(file: Path, module: str, pair: Mapping[str, tuple[int, ...]], config: AdapterConfig) -> AdaptedModule:
    a, b = pair.get("A", ()), pair.get("B", ())
    rank = config.rank_of(module)
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise HubError(
            f"{file}: {module} has lora_A {list(a)} and lora_B {list(b)}, and the rank is {rank} in "
            "adapter_config.json: do both files belong together?"
        )
    return AdaptedModule(rank, config.scaling_of(module), inputs=a[1], outputs=b[0])


def _advice(name: str) -> str:
    if "lora_embedding" in name:
        return "embeddings are not adapted: choose other target_modules"
    if "lora_magnitude" in name:
        return "merge a DoRA adapter into the model where peft is installed"
    return "only lora_A and lora_B of linear layers are read"
