"""Any other causal LM, computed by transformers' code with our paged attention.

Its models look up attention by name (AttentionInterface) and pass it keyword arguments, among them the step's
caches and plan. A recorded forward pass shows whether our attention computes all that the model needs.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn

from kvasir.hub.model_info import ModelInfo
from kvasir.hub.rope_parameters import ROPE_KEYS
from kvasir.hub.weight_scheme import UNQUANTISED
from kvasir.hub.weights import tensor_bytes, weight_files
from kvasir.layers.attention import HeadShape, ScoreRule
from kvasir.layers.kv import BlockShape, KVSpec, layer_specs
from kvasir.layers.parameter import Placement
from kvasir.models.checkpoints.transformers_tensors import read_tensors
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.kv_scales import is_kv_scale
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.transformers_code.transformers_caches import TransformersCaches, with_own_caches
from kvasir.models.transformers_code.transformers_checks import (
    check_config,
    find_class,
    hidden_windows,
    unsupported,
    why_not_paged,
)
from kvasir.models.transformers_code.transformers_head import base_of, head_of
from kvasir.parallel.stage import Stage

log = logging.getLogger(__name__)

_NAME = "kvasir_paged"
# Nothing is dropped, and positions are rotated before attention.
_WITHOUT_EFFECT = frozenset(
    ("dropout", "position_ids", "use_cache", "cache_position", "output_router_logits", "is_causal")
)


def load_with_transformers(
    info: ModelInfo, placement: Placement, progress: Callable[[int, int], None]
) -> "TransformersLM | TransformersCaches":
    # Raises ModelLoadError with the reason.
    architecture = info.architecture
    model_class = find_class(architecture)
    files = weight_files(info.path)
    if files[0].suffix == ".gguf":
        raise ModelLoadError("transformers' code does not compute models in GGUF here: give one in safetensors")
    total = tensor_bytes(files)
    progress(0, total)
    transformers.AttentionInterface.register(_NAME, _attention)
    try:
        config = _read_config(info, model_class)
        check_config(architecture, config)
        reason = next(why_not_paged(model_class, config), "")
        model = _from_checkpoint(info, model_class, config, placement, attention=None if reason else _NAME)
    except ModelLoadError:
        raise
    except Exception as error:  # whatever the code of hundreds of models raises
        text = " ".join(str(error).split())
        raise ModelLoadError(f"transformers cannot load this {architecture}: {text}") from error
    progress(total, total)
    if not reason:
        try:
            return _paged(architecture, model)
        except ModelLoadError as error:
            reason = str(error)
            model.set_attn_implementation("eager")
    return with_own_caches(architecture, model, reason)


def _paged(architecture: str, model: transformers.PreTrainedModel) -> "TransformersLM":
    served = TransformersLM(model)
    log.warning(
        "%s is served by transformers' own code (%s): slower than the architectures of docs/models.md",
        architecture,
        transformers.__version__,
    )
    return served


def _reads_own_tensors(info: ModelInfo) -> bool:
    return bool(info.multimodal) or info.weight_scheme != UNQUANTISED


def _read_config(info: ModelInfo, model_class: type[transformers.PreTrainedModel]) -> transformers.PreTrainedConfig:
    # Raises ModelLoadError for rope settings that would be ignored.
    config: transformers.PreTrainedConfig
    if _reads_own_tensors(info):
        values = {name: value for name, value in info.config.items() if name != "quantization_config"}
        assert model_class.config_class is not None
        config = model_class.config_class.from_dict(copy.deepcopy(values))
    else:
        config = transformers.AutoConfig.from_pretrained(info.path, trust_remote_code=False)
    if info.overrides and not _reads_own_tensors(info):
        config = type(config).from_dict(copy.deepcopy(info.config))
    if ROPE_KEYS.isdisjoint(info.overrides):
        return config
    if not hasattr(type(config), "rope_parameters"):
        log.warning("--hf-overrides: %s has no rope_parameters, so they change nothing", info.architecture)
        return config
    asked, read = info.config["rope_parameters"], config.rope_parameters or {}
    ignored = [name for name, value in asked.items() if value and not _contains(read.get(name), value)]
    if ignored:
        raise unsupported(info.architecture, f"it ignores {', '.join(ignored)} of --hf-overrides")
    return config


def _contains(read: Any, asked: Any) -> bool:
    if isinstance(asked, dict) and isinstance(read, dict):
        return all(read.get(name) == value for name, value in asked.items())
    return bool(read == asked)


def _from_checkpoint(
    info: ModelInfo,
    model_class: type[transformers.PreTrainedModel],
    config: transformers.PreTrainedConfig,
    placement: Placement,
    *,
    attention: str | None,
) -> transformers.PreTrainedModel:
    transformers.utils.logging.disable_progress_bar()
    own = _reads_own_tensors(info)
    loaded: Any = model_class.from_pretrained(
        None if own else info.path,
        config=config,
        state_dict=read_tensors(info, placement.dtype) if own else None,
        dtype=placement.dtype,
        attn_implementation=attention,
        use_safetensors=weight_files(info.path)[0].suffix != ".bin",
        local_files_only=True,
        output_loading_info=True,
    )
    model, report = loaded
    report["unexpected_keys"] = [name for name in report["unexpected_keys"] if not is_kv_scale(name)]
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[problem]:
            names = ", ".join(map(str, sorted(report[problem])[:5]))
            raise ModelLoadError(
                f"the checkpoint does not fit transformers' {info.architecture}: {problem} {names}"
            )
    ready: transformers.PreTrainedModel = model.to(placement.device).eval()
    return ready


class TransformersLM:
    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._model = model
        self._base = base_of(model)
        self._head = head_of(model)
        calls, self.hidden_size = self._record()
        heads = {call.heads for call in calls}
        if len(heads) > 1:
            raise ModelLoadError(f"its layers differ in their heads: {sorted(map(str, heads))}")
        self.heads = heads.pop()
        self.vocab_size: int = model.config.vocab_size
        self.windows = tuple(call.rule.window for call in calls)
        self.stage = Stage.of(len(calls), 0, 1)
        if hidden_windows(model.config, self.windows):
            raise ModelLoadError("its layers do not pass their sliding_window to attention")

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return layer_specs(block, self.windows, max_model_len)

    def forward(self, batch: ForwardBatch) -> Hidden:
        assert batch.arrived is None, "transformers' code computes whole models only"
        return Hidden(_forward(self._base, batch.token_ids, batch.positions, _Step(batch)))

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]  # [R, vocab_size]

    def _record(self) -> tuple[list["_Call"], int]:
        """Return the calls of attention, in order of the layers, and the size of the states.

        Raises ModelLoadError for calls that ours cannot serve.
        """
        recorder = _Recorder()
        device = self._model.device
        token_ids = torch.tensor([1, 0, 1, 0, 1], device=device)
        positions = torch.tensor([0, 1, 2, 0, 1], device=device)
        try:
            with torch.inference_mode():
                hidden = _forward(self._base, token_ids, positions, recorder)
                self.logits(hidden)
        except ModelLoadError:
            raise
        except Exception as error:  # a missing argument: a mask, a cache
            raise ModelLoadError(f"its code does not run over a flat batch: {error}") from error
        layers = [call.layer for call in recorder.calls]
        if layers != list(range(len(layers))) or not layers:
            raise ModelLoadError(f"its attention does not run once per layer, in order: {layers}")
        return recorder.calls, hidden.shape[1]

    def reference_logits(self, token_ids: Tensor) -> Tensor:
        # One sequence: [T] → [T, vocab_size], with transformers' own attention.
        self._model.set_attn_implementation("eager")
        try:
            logits: Tensor = self._model(input_ids=token_ids[None], use_cache=False).logits
        finally:
            self._model.set_attn_implementation(_NAME)
        return logits[0]


@dataclass(frozen=True)
class _Call:
    layer: int
    heads: HeadShape
    rule: ScoreRule


class _Attends(Protocol):
    # An argument of forward that reaches each layer's attention.
    def attend(self, call: _Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # q [1, heads, T, head_dim]; k, v [1, kv_heads, T, head_dim] → [T, heads * head_dim]
        ...


class _Step:
    def __init__(self, batch: ForwardBatch) -> None:
        self._batch = batch

    def attend(self, call: _Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        qkv = torch.cat([part[0].transpose(0, 1).flatten(1) for part in (query, key, value)], dim=1)
        cache = self._batch.caches[call.layer]
        plan = self._batch.attention[cache.group]
        return plan.write_and_attend(qkv, cache, call.rule)


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[_Call] = []

    def attend(self, call: _Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.calls.append(call)
        return query.new_zeros(query.shape[2], call.heads.query_size)


def _forward(base: nn.Module, token_ids: Tensor, positions: Tensor, step: _Attends) -> Tensor:  # [T, hidden]
    output = base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, kvasir_step=step)
    hidden: Tensor = output.last_hidden_state
    return hidden[0]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    kvasir_step: _Attends | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    # For transformers: → [1, T, heads, head_dim] and no weights.
    if kvasir_step is None:
        raise ModelLoadError("its layers do not hand keyword arguments through to attention")
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise ModelLoadError("its attention is not causal")
    if attention_mask is not None:
        raise ModelLoadError("it makes attention masks of its own")
    unknown = [name for name, given in others.items() if name not in _WITHOUT_EFFECT and _asks(given)]
    if unknown:
        raise ModelLoadError(f"its attention takes {', '.join(unknown)}, which ours does not")
    if sliding_window is not None and sliding_window < 1:
        raise ModelLoadError(f"its attention has a sliding window of {sliding_window} tokens")
    tokens, head_dim = query.shape[2:]
    if key.shape != value.shape or key.shape[2:] != query.shape[2:]:
        shapes = [list(part.shape) for part in (query, key, value)]
        raise ModelLoadError(f"queries, keys and values differ in length or head size: {shapes}")
    call = _Call(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        heads=HeadShape(query.shape[1], key.shape[1], head_dim),
        rule=ScoreRule(head_dim**-0.5 if scaling is None else float(scaling), sliding_window, softcap),
    )
    return kvasir_step.attend(call, query, key, value).view(1, tokens, -1, head_dim), None


def _asks(given: Any) -> bool:
    return given is not None and given is not False
