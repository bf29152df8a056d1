"""Random weights for tests of speed and memory, the same in every start."""

import hashlib
import logging
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from kvasir.layers.layout import WHOLE
from kvasir.layers.parameter import weight_loader_of
from kvasir.models.causal_lm import LoadableTransformer

# As in vLLM's dummy format, so that no value overflows.
_LARGEST: Final = 1e-3
# Random numbers would not fit together here, or would not stay finite.
_CONSTANTS: Final = MappingProxyType(
    {
        **dict.fromkeys(("g_idx", "weight_g_idx"), 0),  # all inputs are in order
        "qzeros": 0x7F7F7F7F,  # GPTQ's only zero of 8 bits
        "quant_map": 1.0,  # the same for all parts of a fused layer
        "weight_global_scale": 1 / _LARGEST,  # a divisor
    }
)

log = logging.getLogger(__name__)


@torch.no_grad()
def fill_with_random_numbers(model: LoadableTransformer, progress: Callable[[int, int], None]) -> None:
    """Fill a model's parameters. `progress` is called with the bytes done and the total."""
    log.warning("--load-format dummy: the weights are random numbers, so answers have no meaning")
    parameters = list(model.named_parameters())
    done, total = 0, sum(parameter.nbytes for _, parameter in parameters)
    progress(done, total)
    for name, parameter in parameters:
        generator = torch.Generator(parameter.device).manual_seed(_seed(name, parameter))
        _fill(parameter, name.rpartition(".")[2], generator)
        done += parameter.nbytes
        progress(done, total)


def _fill(parameter: nn.Parameter, name: str, generator: torch.Generator) -> None:
    if name in _CONSTANTS:
        parameter.fill_(_CONSTANTS[name])
    elif parameter.dtype == torch.uint8:  # exponents of up to 2 ** 0
        parameter.random_(0, 128, generator=generator)
    elif not parameter.is_floating_point():
        parameter.random_(generator=generator)
    elif parameter.element_size() > 1:
        parameter.uniform_(-_LARGEST, _LARGEST, generator=generator)
    else:  # no random numbers exist in 8 bits
        floats = torch.empty(parameter.shape, device=parameter.device).uniform_(-1, 1, generator=generator)
        parameter.copy_(floats)


def _seed(name: str, parameter: nn.Parameter) -> int:
    # Ranks that replicate a parameter get the same numbers; others do not.
    loader = weight_loader_of(parameter)
    text = f"{name} {loader.parts(WHOLE)} {sorted(loader.missing)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
