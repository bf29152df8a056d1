"""Models by their shapes: config.json, tensors, and the bytes and operations that their steps need."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class ModelShape:
    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    tied: bool
    context: int
    # Further fields of config.json.
    extra: Mapping[str, Any] = field(default_factory=dict)
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norms: tuple[str, ...] = ()

    def config(self, dtype: str) -> dict[str, Any]:
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "dtype": dtype,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 0,
            "eos_token_id": 1,
            **self.extra,
        }

    def write_config(self, folder: Path, dtype: str) -> None:
        # The engine needs no tokenizer for requests of token ids without a grammar.
        (folder / "config.json").write_text(json.dumps(self.config(dtype), indent=1) + "\n")

    # ------------------------------------------------------------------------------------------- bytes and FLOPs

    @property
    def layer_numbers(self) -> int:
        # In bytes, without norms.
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * self.hidden * (heads + 3 * self.inner)

    @property
    def head_numbers(self) -> int:
        return self.hidden * self.vocab

    def step_bytes(self, tokens_in_cache: int, dtype_bytes: int) -> int:
        """Return the bytes that a decode step reads: all K and V, and weights without an untied embedding."""
        kv = 2 * self.layers * self.kv_heads * self.head_dim * tokens_in_cache
        return dtype_bytes * (self.layer_numbers + self.head_numbers + kv)

    def prefill_flops(self, lengths: Sequence[int]) -> int:
        """Return the operations of whole prompts, each of which gives one token."""
        pairs = sum(length * (length + 1) // 2 for length in lengths)  # of a query and a key that it sees
        attention = 4 * self.layers * self.heads * self.head_dim * pairs
        return 2 * self.layer_numbers * sum(lengths) + 2 * self.head_numbers * len(lengths) + attention

    # --------------------------------------------------------------------------------------------------- tensors

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        # Names and sizes as in a checkpoint.
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.self_attn.q_proj.weight", (query, self.hidden)
            yield f"{prefix}.self_attn.k_proj.weight", (kv, self.hidden)
            yield f"{prefix}.self_attn.v_proj.weight", (kv, self.hidden)
            yield f"{prefix}.self_attn.o_proj.weight", (self.hidden, query)
            yield f"{prefix}.mlp.gate_proj.weight", (self.inner, self.hidden)
            yield f"{prefix}.mlp.up_proj.weight", (self.inner, self.hidden)
            yield f"{prefix}.mlp.down_proj.weight", (self.hidden, self.inner)
            for name in self.layer_norms:
                yield f"{prefix}.{name}.weight", (self.hidden,)
            for name in self.head_norms:
                yield f"{prefix}.self_attn.{name}.weight", (self.head_dim,)
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def save(self, folder: Path, dtype: torch.dtype, device: str, *, shard_bytes: int = 4 * 2**30) -> int:
        """Write a checkpoint of random numbers, whose outputs differ from token to token; return its bytes."""
        self.write_config(folder, str(dtype).removeprefix("torch."))
        shards: list[dict[str, tuple[int, ...]]] = [{}]
        size = total = 0
        for name, shape in self.tensors():
            num_bytes = math.prod(shape) * dtype.itemsize
            if shards[-1] and size + num_bytes > shard_bytes:
                shards.append({})
                size = 0
            shards[-1][name] = shape
            size, total = size + num_bytes, total + num_bytes
        generator = torch.Generator(device).manual_seed(0)
        places = {}
        for number, shard in enumerate(shards, 1):
            file = f"model-{number:05}-of-{len(shards):05}.safetensors"
            tensors = {name: self._random(name, shape, generator).to(dtype).cpu() for name, shape in shard.items()}
            save_file(tensors, folder / file, metadata={"format": "pt"})
            places.update(dict.fromkeys(shard, file))
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return total

    def _random(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        numbers: Tensor = torch.randn(shape, generator=generator, device=generator.device)
        if len(shape) == 1:  # Gemma's norms are stored as their distance from 1
            return numbers * 0.1 + (0.0 if self.model_type.startswith("gemma") else 1.0)
        scale = 2.0 if name == "lm_head.weight" else 1.0
        return numbers.mul_(scale / shape[1] ** 0.5)


LLAMA_8B: Final = ModelShape(
    architecture="LlamaForCausalLM",
    model_type="llama",
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    inner=14336,
    vocab=128256,
    tied=False,
    context=131072,
    extra=MappingProxyType(
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "attention_bias": False,
            "mlp_bias": False,
        }
    ),
)
QWEN3_06B: Final = ModelShape(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    hidden=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    inner=3072,
    vocab=151936,
    tied=True,
    context=40960,
    extra=MappingProxyType(
        {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "attention_bias": False}
    ),
    head_norms=("q_norm", "k_norm"),
)
# Keyed by the names of sections.py.
MODELS: Final = MappingProxyType({"llama-3.1-8b": LLAMA_8B, "qwen3-0.6b": QWEN3_06B})

# Small models whose tokens are compared.
CHECKED: Final = MappingProxyType(
    {
        "qwen3": replace(QWEN3_06B, layers=4, head_dim=64, inner=2048, vocab=4096, tied=False, context=2048),
        "gemma2": ModelShape(
            architecture="Gemma2ForCausalLM",
            model_type="gemma2",
            hidden=1024,
            layers=4,
            heads=4,
            kv_heads=2,
            head_dim=256,
            inner=2048,
            vocab=4096,
            tied=True,
            context=2048,
            extra=MappingProxyType(
                {
                    "hidden_activation": "gelu_pytorch_tanh",
                    "rms_norm_eps": 1e-6,
                    "rope_theta": 10000.0,
                    "query_pre_attn_scalar": 256,
                    "sliding_window": 96,
                    "attn_logit_softcapping": 50.0,
                    "final_logit_softcapping": 30.0,
                    "attention_bias": False,
                }
            ),
            layer_norms=(
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ),
        ),
    }
)


def tiny(shape: ModelShape) -> ModelShape:
    """Return the shape with few numbers, for a smoke test."""
    extra = {name: value for name, value in shape.extra.items() if name != "rope_scaling"}
    if "sliding_window" in extra:
        extra |= {"sliding_window": 8, "query_pre_attn_scalar": 16}
    return replace(
        shape, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, inner=96, vocab=128, context=512, extra=extra
    )
