"""Read the configuration of a model, without torch."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.convert_tokenizer import tokenizer_directory
from kvasir.hub.generation_config import eos_token_ids, max_new_tokens, sampling_defaults
from kvasir.hub.gguf.kept_layers import GGUF
from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.other_formats import explain
from kvasir.hub.pooling.pooling_info import PoolingInfo, read_pooling
from kvasir.hub.reading import read_json, read_json_if_any
from kvasir.hub.rope_parameters import ROPE_KEYS, extended_context, override_rope, rope_parameters
from kvasir.hub.text_part import text_config
from kvasir.hub.tokenizer_files import canonical_json, read_tokenizer_config, token_id_of, tokenizer_hash
from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme, chosen_scheme, config_of_companion, read_scheme

_DTYPES = ("float32", "bfloat16", "float16")
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}
_LENGTHS = (
    *("max_position_embeddings", "max_trained_positions", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
    "model_max_length",
)
# Models whose files leave it out, and vLLM's default.
_WITHOUT_LENGTH: Final = ("bloom", "falcon", "falcon_mamba", "mamba", "mamba2")
_DEFAULT_LENGTH: Final = 2048
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_OFFSET_POSITIONS: Final = ("roberta", "xlm-roberta", "camembert", "mpnet")
_WIDTHS = ("hidden_size", "n_embd", "dim")


@dataclass(frozen=True)
class ModelInfo:
    path: Path
    architecture: str
    config: dict[str, Any]  # with --hf-overrides
    dtype: str  # float32, bfloat16 or float16
    max_model_len: int  # positions, extended by the scaling of the rotary embedding
    vocab_size: int
    width: int | None  # of the hidden states; None if unknown
    eos_token_ids: tuple[int, ...]
    generation_defaults: dict[str, float | int]  # top_k 0 keeps all tokens
    fingerprint: str  # 32 hex digits
    tokenizer_hash: str
    tokenizer: Path | None = None  # None: `path`
    overrides: dict[str, Any] = field(default_factory=dict)
    weights: str = ""
    """Identity of the weights; "" before the download, and in frontends."""
    max_new_tokens: int | None = None
    """Default tokens of a request; None: the rest of the context."""
    # a sentence per setting without effect
    notes: tuple[str, ...] = ()
    weight_scheme: WeightScheme = UNQUANTISED
    # None: the model generates.
    pooling: PoolingInfo | None = None
    # The class of a multimodal checkpoint, of which the other fields describe the text model. "": text only.
    multimodal: str = ""

    @property
    def tokenizer_path(self) -> Path:
        return self.tokenizer or self.path


@dataclass(frozen=True)
class ModelFiles:
    tokenizer: Path | None = None
    generation: Path | None = None
    no_generation: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
    generation_overrides: dict[str, Any] = field(default_factory=dict)
    task: str = "auto"
    quantization: str | None = None


_OWN_FILES: Final = ModelFiles()
# by model_type, for a config.json without `architectures`
ARCHITECTURES: Final = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
GENERATION_FILE: Final = "generation_config.json"


def load_model_info(path: Path, files: ModelFiles = _OWN_FILES) -> ModelInfo:
    """Return the info of a model's directory. Raises HubError with file and field."""
    config = _Config(path / "config.json", overrides=files.overrides, option="--hf-overrides")
    generation = _Config(
        (files.generation or path) / GENERATION_FILE,
        optional=files.generation is None,
        skipped=files.no_generation,
        overrides=files.generation_overrides,
        option="--override-generation-config",
    )
    architecture = _architecture(config)
    pooling = read_pooling(path, architecture, config.values, files.task, files.tokenizer)
    scheme = chosen_scheme(files.quantization, _weight_scheme(config, files.quantization))
    return ModelInfo(
        path=path,
        architecture=architecture,
        config=config.values,
        dtype=_dtype(config),
        max_model_len=_context(config, pooling),
        vocab_size=config.count("vocab_size"),
        width=config.count(*_WIDTHS) if config.get(*_WIDTHS) is not None else None,
        eos_token_ids=_eos_token_ids(generation, config, files.tokenizer or path),
        generation_defaults=sampling_defaults(generation.values, generation.refuse),
        fingerprint=_fingerprint(path, config.values, scheme, "" if pooling is None else pooling.task),
        tokenizer_hash=tokenizer_hash(files.tokenizer or path),
        tokenizer=files.tokenizer,
        overrides=files.overrides,
        max_new_tokens=max_new_tokens(generation.values, generation.refuse),
        notes=tuple(generation.notes + config.notes),
        weight_scheme=scheme,
        pooling=pooling,
        multimodal=config.multimodal,
    )


class _Config:
    def __init__(
        self,
        file: Path,
        optional: bool = False,
        skipped: bool = False,
        overrides: Mapping[str, Any] = _NONE,
        option: str = "",
    ) -> None:
        if not optional and not skipped and not file.exists():
            if file.name == GENERATION_FILE:
                message = f"--generation-config: {file.parent} has no {file.name}: give auto, vllm, or a directory "
                raise ModelNotFound(message + "that has it")
            raise ModelNotFound(
                explain(file.parent)
                or f"{file.parent} holds no model: it has no {file.name}; give the directory that holds "
                f"{file.name} and the weights. Repositories of a LoRA adapter have none: give the model behind it; "
                "those of GGUF files take a quantisation, hf://org/name:Q4_K_M"
            )
        self.file = file
        self._overrides, self._option = overrides, option
        values = {} if skipped else read_json_if_any(file) if optional else read_json(file)
        plain = {name: value for name, value in overrides.items() if name not in ROPE_KEYS}
        try:
            whole = merged(values, plain)
            text = text_config(whole, plain)
            self.values = override_rope(whole if text is None else text, overrides)
            rope_parameters(self.values)
        except HubError as error:
            place = file if ROPE_KEYS.isdisjoint(overrides) else option
            raise HubError(f"{place}: {error}") from None
        self.multimodal = "" if text is None else str(whole["architectures"][0])
        text = self.values.get("text_config")
        self._parts = (text, self.values) if isinstance(text, dict) else (self.values,)
        self.part: Mapping[str, Any] = self._parts[0]
        self.notes: list[str] = []

    def get(self, *names: str) -> Any:
        """Return the first of these fields that is not null."""
        for part in self._parts:
            for name in names:
                if part.get(name) is not None:
                    return part[name]
        return None

    def count(self, *names: str) -> int:
        value = self.get(*names)
        if type(value) is not int or value < 1:
            raise self.error(names[0], value, "a whole number above 0")
        return value

    def refuse(self, name: str, value: Any, wanted: str) -> None:
        """Note that a field is not used. Raises HubError for a field of the user."""
        if name in self._overrides:
            raise self.error(name, value, wanted)
        self.notes.append(f"{self.file}: {name} is {value!r} and is not used: it should be {wanted}")

    def error(self, name: str, value: Any, wanted: str) -> HubError:
        found = "is missing" if value is None else f"is {value!r}"
        place = self._option if name in self._overrides else self.file
        return HubError(f"{place}: {name} {found}, it must be {wanted}")


def _positions(config: _Config) -> int:
    if config.get("model_type") not in _WITHOUT_LENGTH or config.get(*_LENGTHS) is not None:
        return config.count(*_LENGTHS)
    limit = f"it names no longest context, so {_DEFAULT_LENGTH} tokens are used"
    config.notes.append(f"{config.file}: {limit}; --hf-overrides '{{\"max_position_embeddings\": N}}' sets another")
    return _DEFAULT_LENGTH


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    # nested objects are merged field by field
    result = dict(values)
    for name, value in overrides.items():
        before = result.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def _weight_scheme(config: _Config, option: str | None) -> WeightScheme:
    if config.get("quantization"):
        raise HubError(
            f"{config.file}: quantization: weights that MLX quantised are not supported: use the model that this "
            "one was made from"
        )
    written = config.get("quantization_config", "compression_config")
    kept = written.get("kept") if isinstance(written, dict) else None  # of GGUF
    if (option is None and kept) or (option == GGUF and kept is not None):
        return WeightScheme(GGUF, {"kept": kept})
    try:
        return read_scheme(written if written is not None else config_of_companion(config.file.parent))
    except HubError as error:
        raise HubError(f"{config.file}: quantization_config: {error}") from None


def _context(config: _Config, pooling: PoolingInfo | None) -> int:
    positions = _positions(config)
    if pooling is not None and config.get("model_type") in _OFFSET_POSITIONS:
        positions -= 1 + (config.get("pad_token_id") or 0)  # the first token's position follows the padding's
    context = _of_first_chunk(config, extended_context(positions, config.part))
    return context if pooling is None or pooling.max_tokens is None else min(context, pooling.max_tokens)


def _architecture(config: _Config) -> str:
    names = config.values.get("architectures")
    if not names and (found := ARCHITECTURES.get(str(config.get("model_type")))):
        return found  # transformers omits the list when it reads GGUF
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.error("architectures", names, 'a list with the model\'s class, such as ["LlamaForCausalLM"]')
    return names[0]


def _of_first_chunk(config: _Config, context: int) -> int:
    if config.values.get("architectures") != ["Llama4ForCausalLM"]:
        return context
    # Within a chunk, Llama 4's attention by chunks equals full attention; queries grow from `floor_scale` on.
    chunk, growth = (config.get(name) or 8192 for name in ("attention_chunk_size", "floor_scale"))
    computed = min(context, chunk, growth - 1)
    if computed < context:
        config.notes.append(
            f"{config.file}: contexts are limited to {computed} tokens, because attention by chunks "
            f"(attention_chunk_size {chunk}, floor_scale {growth}) is not computed"
        )
    return computed


def _dtype(config: _Config) -> str:
    value = config.get("dtype", "torch_dtype")
    if value in (None, "auto"):
        return "float32"
    name = str(value).removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in _DTYPES:
        raise config.error("dtype", value, f"one of {', '.join(_DTYPES)}")
    return name


def _eos_token_ids(generation: _Config, config: _Config, tokenizer: Path) -> tuple[int, ...]:
    # fine-tunes often name the end of a chat in only one of three places
    of_config = eos_token_ids({"eos_token_id": config.get("eos_token_id")}, config.refuse)
    named = eos_token_ids(generation.values, generation.refuse) + of_config
    return tuple(dict.fromkeys((*named, *_eos_of_tokenizer(tokenizer))))


def _eos_of_tokenizer(path: Path) -> tuple[int, ...]:
    # empty without a usable tokenizer, which its loading reports
    try:
        path = tokenizer_directory(path)
        eos = read_tokenizer_config(path).special_tokens.get("eos_token")
        token_id = None if eos is None else token_id_of(path, eos)
    except HubError:
        return ()
    return () if token_id is None else (token_id,)


def _fingerprint(path: Path, config: dict[str, Any], scheme: WeightScheme, task: str) -> str:
    # frontends have no weights, so their index and commit stand for them
    commit = path.name if path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", path.name) else ""
    index = read_json_if_any(path / "model.safetensors.index.json")
    facts = [config, index, commit]
    if scheme.config and scheme.config != config.get("quantization_config"):
        facts.append(scheme.config)
    if task:
        facts.append(task)
    return hashlib.sha256(canonical_json(facts)).hexdigest()[:32]
