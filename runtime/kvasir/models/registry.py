"""The code of each architecture of config.json. A new model is one file and one line here."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.parameter import Placement
from kvasir.models.architectures import (
    arcee,
    exaone4,
    gemma,
    glm,
    granite,
    helium,
    hunyuan,
    llama,
    mistral,
    olmo,
    phi3,
    qwen,
    seed_oss,
    smollm3,
)
from kvasir.models.architectures.layer_norm import (
    cohere,
    falcon,
    gpt2,
    gpt_neox,
    nemotron,
    opt,
    phi,
    stablelm,
    starcoder2,
)
from kvasir.models.architectures.mixtures import (
    ernie,
    glm4_moe,
    gpt_oss,
    granite_moe,
    hunyuan_moe,
    llama4,
    minimax_m2,
    mixtral,
    olmoe,
    phi_moe,
)
from kvasir.models.causal_lm import LoadableLM
from kvasir.models.decoder import Decoder
from kvasir.models.decoder_config import Read, read_with

# Arguments: config.json, placement, and the longest request in tokens. Parameters stay uninitialised.
Build = Callable[[Mapping[str, Any], Placement, int], LoadableLM]


def _decoder(read: Read) -> Build:
    return partial(_build, read)


def _build(read: Read, config: Mapping[str, Any], placement: Placement, context: int) -> Decoder:
    return Decoder(read_with(read, config), placement, context)


def reader_of(build: Build) -> Read:
    """Return the function that reads config.json."""
    assert isinstance(build, partial)
    return build.args[0]  # type: ignore[no-any-return]


ARCHITECTURES: Final = MappingProxyType[str, Build](
    {
        "ArceeForCausalLM": _decoder(arcee.read_config),
        "Cohere2ForCausalLM": _decoder(cohere.read_cohere2),
        "CohereForCausalLM": _decoder(cohere.read_cohere),
        "Exaone4ForCausalLM": _decoder(exaone4.read_config),
        "FalconForCausalLM": _decoder(falcon.read_config),
        "Gemma2ForCausalLM": _decoder(gemma.read_gemma2),
        "Gemma3ForCausalLM": _decoder(gemma.read_gemma3),
        "GemmaForCausalLM": _decoder(gemma.read_gemma),
        "Glm4ForCausalLM": _decoder(glm.read_glm4),
        "GlmForCausalLM": _decoder(glm.read_glm),
        "GPTNeoXForCausalLM": _decoder(gpt_neox.read_config),
        "GraniteForCausalLM": _decoder(granite.read_config),
        "HeliumForCausalLM": _decoder(helium.read_config),
        "HunYuanDenseV1ForCausalLM": _decoder(hunyuan.read_config),
        "GPT2LMHeadModel": _decoder(gpt2.read_config),
        "HyperCLOVAXForCausalLM": _decoder(granite.read_hyperclovax),
        "LlamaForCausalLM": _decoder(llama.read_config),
        "Ministral3ForCausalLM": _decoder(mistral.read_ministral3),
        "MinistralForCausalLM": _decoder(mistral.read_ministral),
        "MistralForCausalLM": _decoder(mistral.read_config),
        "NemotronForCausalLM": _decoder(nemotron.read_config),
        "Olmo2ForCausalLM": _decoder(olmo.read_olmo2),
        "Olmo3ForCausalLM": _decoder(olmo.read_olmo3),
        "OPTForCausalLM": _decoder(opt.read_config),
        "Phi3ForCausalLM": _decoder(phi3.read_config),
        "PhiForCausalLM": _decoder(phi.read_config),
        "Qwen2ForCausalLM": _decoder(qwen.read_qwen2),
        "Qwen3ForCausalLM": _decoder(qwen.read_qwen3),
        "Qwen2MoeForCausalLM": _decoder(qwen.read_qwen2_moe),
        "Qwen3MoeForCausalLM": _decoder(qwen.read_qwen3_moe),
        "SeedOssForCausalLM": _decoder(seed_oss.read_config),
        "SmolLM3ForCausalLM": _decoder(smollm3.read_config),
        "StableLmForCausalLM": _decoder(stablelm.read_config),
        "Starcoder2ForCausalLM": _decoder(starcoder2.read_config),
        # mixtures of experts
        "Dots1ForCausalLM": _decoder(glm4_moe.read_dots1),
        "Ernie4_5_MoeForCausalLM": _decoder(ernie.read_ernie_moe),
        "Ernie4_5ForCausalLM": _decoder(ernie.read_ernie),
        "Glm4MoeForCausalLM": _decoder(glm4_moe.read_glm4_moe),
        "GptOssForCausalLM": _decoder(gpt_oss.read_config),
        "GraniteMoeForCausalLM": _decoder(granite_moe.read_config),
        "GraniteMoeSharedForCausalLM": _decoder(granite_moe.read_config),
        "HunYuanMoEV1ForCausalLM": _decoder(hunyuan_moe.read_config),
        "Llama4ForCausalLM": _decoder(llama4.read_config),
        "MiniMaxM2ForCausalLM": _decoder(minimax_m2.read_config),
        "MixtralForCausalLM": _decoder(mixtral.read_config),
        "OlmoeForCausalLM": _decoder(olmoe.read_config),
        "PhimoeForCausalLM": _decoder(phi_moe.read_config),
    }
)
