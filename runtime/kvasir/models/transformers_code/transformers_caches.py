"""Any causal LM of transformers whose cache ours cannot hold: states, latent or compressed attention, chunks.

Each request has a cache of transformers' own, and is computed by itself, as by `generate`.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any, Final

import torch
import transformers
from torch import Tensor

from kvasir.layers.attention import HeadShape
from kvasir.layers.attention_backends.per_request import RequestRows
from kvasir.layers.kv import BlockShape, KVSpec, PerRequest
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.transformers_code.transformers_checks import unsupported
from kvasir.models.transformers_code.transformers_head import base_of, head_of
from kvasir.parallel.stage import Stage

log = logging.getLogger(__name__)

# Names of a cache in forward's arguments and results.
_CACHE_NAMES: Final = ("cache", "past_key_values", "cache_params")
_LENGTHS: Final = (24, 40)  # longer than the states of convolutions
# Relative to the spread of the states. A lost context gives about 1.
_TOLERANCE: Final = {torch.float32: 0.01, torch.float16: 0.2, torch.bfloat16: 0.5}


class _Request:
    def __init__(self) -> None:
        self.cache: Any = None
        self.tokens: list[Tensor] = []  # if chunks are computed again


class TransformersCaches:
    """`continues`: the model can add several tokens to a cache; otherwise a chunk computes its request again."""

    def __init__(self, architecture: str, model: transformers.PreTrainedModel) -> None:
        self._base, self._head = base_of(model), head_of(model)
        parameters = inspect.signature(self._base.forward).parameters
        names = [name for name in _CACHE_NAMES if name in parameters]
        if not names:
            raise unsupported(architecture, "its code keeps no cache between tokens")
        self._cache_name = names[0]
        self._takes_positions = "position_ids" in parameters
        self._requests: dict[int, _Request] = {}
        self.vocab_size: int = model.config.vocab_size
        self.continues = True
        self._check(architecture, model)
        self.heads = HeadShape(1, 1, -(-self._token_bytes // (2 * model.dtype.itemsize)))
        self.windows: tuple[int | None, ...] = (None,)
        self.stage = Stage.of(1, 0, 1)

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return [PerRequest(block, self._request_bytes)]

    def forward(self, batch: ForwardBatch) -> Hidden:
        plan = batch.attention[0]
        assert isinstance(plan, RequestRows), "kv_specs asks for it"
        step = plan.step
        ends = step.new.cumsum()
        parts = [
            self._computed(int(row), batch.token_ids[end - new : end], int(computed))
            for row, computed, new, end in zip(step.rows, step.computed, step.new, ends, strict=True)
        ]
        return Hidden(torch.cat(parts))

    def forget(self, row: int) -> None:
        self._requests.pop(row, None)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]  # [R, vocab_size]

    def _computed(self, row: int, token_ids: Tensor, start: int) -> Tensor:  # [T] → [T, hidden]
        request = self._requests.get(row)
        if request is None or start == 0:
            request = self._requests[row] = _Request()
        if not self.continues:
            request.tokens.append(token_ids)
            if start and len(token_ids) > 1:
                request.cache = None
                return self._add(request, torch.cat(request.tokens), 0)[start:]
        return self._add(request, token_ids, start)

    def _add(self, request: _Request, token_ids: Tensor, start: int) -> Tensor:
        more: dict[str, Any] = {} if request.cache is None else {self._cache_name: request.cache}
        if self._takes_positions:
            more["position_ids"] = torch.arange(start, start + len(token_ids), device=token_ids.device)[None]
        output = self._base(input_ids=token_ids[None], use_cache=True, **more)
        request.cache = next(found for name in _CACHE_NAMES if (found := getattr(output, name, None)) is not None)
        hidden: Tensor = output.last_hidden_state
        return hidden[0]

    def _check(self, architecture: str, model: transformers.PreTrainedModel) -> None:
        """Compare whole sequences with their parts, and measure caches. Raises ModelLoadError."""
        short, long = _LENGTHS
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.vocab_size, (long,), generator=generator).to(model.device)
        with torch.inference_mode():
            try:
                whole = self._add(_Request(), tokens, 0).float()
                first = _Request()
                parts = [self._add(first, tokens[:short], 0)]
                before = _cache_bytes(first.cache, set())
                parts += [self._add(first, tokens[at : at + 1], at) for at in range(short, long)]
                after = _cache_bytes(first.cache, set())
                self.logits(parts[-1])
            except Exception as error:  # whatever the code of hundreds of models raises
                text = " ".join(str(error).split())
                raise unsupported(architecture, f"its code does not compute from a cache: {text}") from error
            if not _alike(torch.cat(parts), whole, model.dtype):
                raise unsupported(
                    architecture, "its code computes other states token by token than for a whole sequence"
                )
            self.continues = self._can_continue(tokens, whole, model.dtype)
        self.hidden_size = whole.shape[1]
        self._token_bytes = max(1, (after - before) // (long - short))
        self._request_bytes = max(0, before - short * self._token_bytes)

    def _can_continue(self, tokens: Tensor, whole: Tensor, dtype: torch.dtype) -> bool:
        request, short = _Request(), _LENGTHS[0]
        try:
            chunks = [self._add(request, tokens[:short], 0), self._add(request, tokens[short:], short)]
        except Exception:
            return False
        return _alike(torch.cat(chunks), whole, dtype)


def _alike(found: Tensor, whole: Tensor, dtype: torch.dtype) -> bool:
    error = (found.float() - whole).square().mean(dim=1).sqrt() / whole.std(dim=1)
    return bool(error.max() <= _TOLERANCE[dtype])


def _cache_bytes(cache: Any, seen: set[int]) -> int:
    if id(cache) in seen:
        return 0
    seen.add(id(cache))
    if isinstance(cache, Tensor):
        return cache.numel() * cache.element_size()
    if isinstance(cache, dict):
        return sum(_cache_bytes(part, seen) for part in cache.values())
    if isinstance(cache, list | tuple):
        return sum(_cache_bytes(part, seen) for part in cache)
    return sum(_cache_bytes(part, seen) for part in vars(cache).values()) if hasattr(cache, "__dict__") else 0


def with_own_caches(architecture: str, model: transformers.PreTrainedModel, reason: str) -> TransformersCaches:
    """Return the served model; `reason`: why it is not paged. Raises ModelLoadError."""
    try:
        served = TransformersCaches(architecture, model)
    except ModelLoadError as error:
        raise ModelLoadError(f"{error}; and over a paged KV cache, {reason}") from error
    log.warning(
        "%s is computed by transformers' own code, each request by itself and with a cache of its own: slower than "
        "the architectures of docs/models.md, and without a prefix cache%s",
        architecture,
        "" if served.continues else "; chunks of long prompts compute their request again",
    )
    log.info("it is not computed over the paged KV cache, because %s", reason)
    return served
