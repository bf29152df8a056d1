"""Layers of a GGUF file that keep their 4 or 8 bits, without --quantization none."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvasir.hub.gguf.gguf_file import GGUFTensor
from kvasir.hub.gguf.gguf_names import FAMILIES, checkpoint_name, leaf_of
from kvasir.hub.quantisation.layer_formats import LayerFormat, Nibbles, Numbers
from kvasir.hub.quantisation.layer_names import Layer

GGUF: Final = "gguf"
FORMATS: Final[Mapping[str, LayerFormat]] = MappingProxyType(
    {
        "Q8_0": Numbers("int8", "group", (1, 32)),
        "Q6_K": Numbers("int8", "group", (1, 16)),
        "Q5_0": Numbers("int8", "group", (1, 32)),
        "Q4_0": Nibbles(32),
        "Q4_1": Nibbles(32, zeros=True),
        "Q4_K": Nibbles(32, zeros=True),
        "IQ4_NL": Nibbles(32, table=True),
    }
)
# no products: an embedding is looked up, and routers stay in floats
_OTHERS: Final = frozenset(("token_embd", "position_embd", "ffn_gate_inp"))


def kept_layers(model_type: str, tensors: Sequence[GGUFTensor]) -> dict[str, str]:
    """Return the types of the layers that can be kept, by name in the checkpoint."""
    family = FAMILIES[model_type]
    types: dict[str, str] = {}
    for tensor in tensors:
        leaf = leaf_of(tensor.name)
        if len(tensor.shape) > 1 and leaf not in _OTHERS and leaf not in family.transposed:
            types[checkpoint_name(tensor.name, family).removesuffix(".weight")] = tensor.type
    return {layer: kind for layer, kind in types.items() if kind in FORMATS}


def kept_name(layer: str) -> str:
    """Return the name by which all experts of a layer are listed.

    >>> kept_name("model.layers.0.mlp.experts.7.up_proj")
    'model.layers.0.mlp.experts.up_proj'
    """
    return re.sub(r"\.experts\.\d+\.", ".experts.", layer)


@dataclass(frozen=True)
class KeptLayers:
    types: Mapping[str, str]

    def format_of(self, layer: Layer) -> LayerFormat | None:
        kinds = (self.types.get(kept_name(name)) for name in layer.spellings())
        return next((FORMATS[kind] for kind in kinds if kind is not None), None)
