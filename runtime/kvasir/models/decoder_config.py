"""The config of `kvasir.models.decoder`, read from config.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ACTIVATIONS, Activation
from kvasir.layers.attention import HeadShape
from kvasir.layers.mlp import MLP, GatedMLP
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.layers.norm import Norm, RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.qk_norm import QKNorm
from kvasir.layers.rotary import Rope
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.model_load_error import ModelLoadError

# Whether a layer type has a sliding window.
LAYER_TYPES: Final = MappingProxyType({"full_attention": False, "sliding_attention": True})


class Order(Enum):
    """Where a layer normalises; f is attention, then the feed-forward layer."""

    BEFORE = auto()  # x + f(norm(x))
    AFTER = auto()  # x + norm(f(x)): OLMo 2
    AROUND = auto()  # x + norm(f(norm(x))): Gemma 2
    PARALLEL = auto()  # x + attention(norm(x)) + mlp(norm(x)), of one norm: Phi
    PARALLEL_TWO_NORMS = auto()  # GPT-NeoX


@dataclass(frozen=True)
class LayerConfig:
    # None: the layer does not see positions.
    rope: Rope | None
    # In tokens, the layer's own included; None: all tokens.
    window: int | None = None
    # None: one feed-forward layer for all tokens.
    experts: ExpertsConfig | None = None
    # False: without the decoder's norm of queries and keys.
    qk_norm: bool = True
    scale: float = 1.0  # multiplies that of the config


@dataclass(frozen=True)
class DecoderConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: HeadShape
    layers: tuple[LayerConfig, ...]
    activation: Activation
    eps: float
    tied: bool
    # Multiplies the attention scores.
    scale: float
    # How many learned vectors of positions are added to the embeddings; None: none.
    positions: int | None = None
    first_position: int = 0
    order: Order = Order.BEFORE
    norm: Callable[[int, float, Placement], Norm] = RMSNorm
    # Of queries and keys, before they are rotated.
    qk_norm: QKNorm | None = None
    rotates_first: bool = False
    # Each head has a score without a value, besides those of the tokens.
    sinks: bool = False
    # Of layers without experts.
    mlp: Callable[..., GatedMLP | MLP] = GatedMLP
    # The checkpoint has the weights of attention as [inputs, outputs].
    transposed: bool = False
    # The checkpoint has q, k and v as one tensor: the queries, key and value of each K/V head.
    grouped_qkv: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    embedding_scale: float = 1.0
    # Multiplies what a layer adds to the residual stream.
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    score_cap: float | None = None
    logit_cap: float | None = None
    # Parts of the checkpoint's tensor names, and ours: {"mlp.up_proj": "mlp.fc1"}.
    names: Mapping[str, str] = field(default_factory=dict)
    # First parts of the names of tensors that are not loaded: of layers that predict further tokens.
    unused: tuple[str, ...] = ()
    # Keys of config.json with another name than Llama's, for messages: {"num_attention_heads": "n_head"}.
    keys: Mapping[str, str] = field(default_factory=dict)

    def key(self, name: str) -> str:
        return self.keys.get(name, name)


def read_heads(reader: ConfigReader, head_dim: int | None = None) -> HeadShape:
    # `head_dim` is a default. None: hidden size / heads.
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json sets num_attention_heads to {heads} and num_key_value_heads to {kv_heads}: "
            "the first must be a multiple of the second"
        )
    hidden_size = reader.integer("hidden_size")
    return HeadShape(heads, kv_heads, reader.integer("head_dim", head_dim or hidden_size // heads))


def read_windows(
    reader: ConfigReader, window: int | None, usually: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """Return the window of each layer. Without `layer_types`, `usually` decides by the layer's index."""
    count = reader.integer("num_hidden_layers")
    sliding = reader.choices("layer_types", count, LAYER_TYPES) or tuple(map(usually, range(count)))
    if window is None and any(sliding):
        raise ModelLoadError("config.json has layers of sliding_attention but sets no sliding_window")
    return tuple(window if slides else None for slides in sliding)


def check_layer_types(reader: ConfigReader, windows: Sequence[int | None]) -> None:
    """Accept `layer_types` that equal the computed ones. Raises ModelLoadError for others."""
    stated = reader.choices("layer_types", len(windows), LAYER_TYPES)
    if stated is not None and stated != tuple(window is not None for window in windows):
        raise ModelLoadError(
            "config.json sets layer_types to other layers than the architecture has with this sliding_window "
            f"({', '.join('sliding' if window else 'full' for window in windows)}): that may change the answers. "
            """Ignore it with --hf-overrides '{"layer_types": null}' if it should not"""
        )


def read_decoder(
    reader: ConfigReader,
    heads: HeadShape,
    layers: LayerConfig | Sequence[LayerConfig],
    *,
    activation: str | Activation = "silu",
    eps: float = 1e-6,
    eps_key: str | None = "rms_norm_eps",
    tied: bool = False,
    attention_bias: bool = False,
    **fields: Any,
) -> DecoderConfig:
    """Read the keys of the Llama family. `layers`: one for all layers, or each.

    The name of an activation, `eps` and `tied` are defaults; `attention_bias` is of all products of attention.
    """
    if isinstance(layers, LayerConfig):
        layers = [layers] * reader.integer("num_hidden_layers")
    check_layer_types(reader, [layer.window for layer in layers])
    if isinstance(activation, str):
        activation = reader.choice("hidden_act", activation, ACTIVATIONS)
    for size in ("vocab_size", "hidden_size", "intermediate_size"):
        if size not in fields:
            fields[size] = reader.integer(size)
    read: dict[str, Any] = {
        "heads": heads,
        "layers": tuple(layers),
        "activation": activation,
        "eps": eps if eps_key is None else reader.number(eps_key, eps),
        "tied": reader.flag("tie_word_embeddings", tied),
        "scale": heads.head_dim**-0.5,
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
    }
    return DecoderConfig(**read | fields)


Read = Callable[[ConfigReader], DecoderConfig]


def read_with(read: Read, config: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json as an architecture does. Raises ModelLoadError for a key that may change the answers."""
    reader = ConfigReader(config)
    decoder = read(reader)
    reader.finish(NO_EFFECT)
    return decoder
