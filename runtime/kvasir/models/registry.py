"""The code of each architecture of config.json. A new model is one file and one line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.parameter import Placement
from kvasir.models.architectures import gemma, llama, mistral, phi, phi3, qwen
from kvasir.models.architectures.gpt2 import GPT2
from kvasir.models.causal_lm import LoadableLM
from kvasir.models.decoder import Decoder
from kvasir.models.decoder_config import DecoderConfig

# Arguments: config.json, placement, and the longest request in tokens. Parameters stay uninitialised.
Build = Callable[[Mapping[str, Any], Placement, int], LoadableLM]


def _decoder(read: Callable[[Mapping[str, Any]], DecoderConfig]) -> Build:
    return lambda config, placement, context: Decoder(read(config), placement, context)


ARCHITECTURES: Final = MappingProxyType[str, Build](
    {
        "Gemma2ForCausalLM": _decoder(gemma.read_gemma2),
        "Gemma3ForCausalLM": _decoder(gemma.read_gemma3),
        "GemmaForCausalLM": _decoder(gemma.read_gemma),
        "GPT2LMHeadModel": GPT2,
        "LlamaForCausalLM": _decoder(llama.read_config),
        "MistralForCausalLM": _decoder(mistral.read_config),
        "Phi3ForCausalLM": _decoder(phi3.read_config),
        "PhiForCausalLM": _decoder(phi.read_config),
        "Qwen2ForCausalLM": _decoder(qwen.read_qwen2),
        "Qwen3ForCausalLM": _decoder(qwen.read_qwen3),
        "Qwen3MoeForCausalLM": _decoder(qwen.read_qwen3_moe),
    }
)
