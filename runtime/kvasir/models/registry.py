"""Which class serves which architecture of config.json. Adding a model is one file and one line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.parameter import Placement
from kvasir.models.base import CausalLM
from kvasir.models.errors import ModelLoadError
from kvasir.models.gpt2 import GPT2
from kvasir.models.llama import Llama

ARCHITECTURES: Final = MappingProxyType[str, Callable[[Mapping[str, Any], Placement], CausalLM]](
    {
        "LlamaForCausalLM": Llama,
        "GPT2LMHeadModel": GPT2,
    }
)


def build_model(architecture: str, config: Mapping[str, Any], placement: Placement) -> CausalLM:
    """The model with uninitialised parameters. Raises ModelLoadError for what is not supported."""
    build = ARCHITECTURES.get(architecture)
    if build is None:
        raise ModelLoadError(
            f"the model's architecture {architecture!r} is not supported; supported are "
            + ", ".join(sorted(ARCHITECTURES))
        )
    return build(config, placement)
