"""GLM-4.5 (Zhipu AI, 2025) and dots.llm1 (Rednote, 2025): Llama with the mixture of experts of DeepSeek V3."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert
from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts, read_grouped
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {"shared_experts": "shared_expert", "mlp.gate.e_score_correction_bias": "mlp.router.correction"}
)


def read_glm4_moe(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    rope = read_rope(reader, heads, partial=0.5)
    experts = _experts(reader, ExpertCounts(128, 8), shared=1, renormalise=True)
    dense, count = reader.integer("first_k_dense_replace", 1, least=0), reader.integer("num_hidden_layers")
    predictors = reader.integer("num_nextn_predict_layers", reader.integer("num_mtp_layers", 1, least=0), least=0)
    return read_decoder(
        reader,
        heads,
        [LayerConfig(rope, experts=experts if index >= dense else None) for index in range(count)],
        eps=1e-5,
        qk_norm=norm_of_each_head(RMSNorm) if reader.flag("use_qk_norm", False) else None,
        qkv_bias=reader.flag("attention_bias", False),
        names=_NAMES,
        # layers that predict further tokens
        unused=tuple(f"layers.{count + index}" for index in range(predictors)),
    )


def read_dots1(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    first = reader.integer("max_window_layers", 62, least=0)
    windows = read_windows(reader, window, lambda index: window is not None and index >= first)
    rope = read_rope(reader, heads)
    experts = _experts(reader, ExpertCounts(128, 6), shared=0, renormalise=False)
    dense = reader.integer("first_k_dense_replace", 0, least=0)
    return read_decoder(
        reader,
        heads,
        [LayerConfig(rope, window, experts if index >= dense else None) for index, window in enumerate(windows)],
        attention_bias=reader.flag("attention_bias", False),
        qk_norm=norm_of_each_head(RMSNorm),
        names=_NAMES,
    )


def _experts(reader: ConfigReader, defaults: ExpertCounts, *, shared: int, renormalise: bool) -> ExpertsConfig:
    counts = read_counts(reader, "n_routed_experts", "num_local_experts", "num_experts", defaults=defaults)
    inner = reader.integer("moe_intermediate_size", 1408)
    shared = reader.integer("n_shared_experts", shared, least=0)
    return ExpertsConfig(
        read_grouped(reader, counts, renormalise=renormalise),
        inner,
        shared=SharedExpert(shared * inner) if shared else None,
        exact_router=True,
    )
