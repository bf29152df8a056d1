"""PoolingModel: a transformer without the head of its vocabulary, with one that makes vectors or scores."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.models.causal_lm import FitsContext, LoadableTransformer, Target
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.pooling.score_head import ScoreHead, TokenScoreHead
from kvasir.models.pooling.vector_head import VectorHead
from kvasir.request.pool_params import PoolParams


class PoolingModel(nn.Module):
    """`names` maps tensors of the checkpoint to parameters of the head; `unused` are prefixes of other heads."""

    def __init__(
        self,
        model: LoadableTransformer,
        head: VectorHead | ScoreHead | TokenScoreHead,
        *,
        is_causal: bool,
        names: Mapping[str, str],
        unused: Sequence[str],
    ) -> None:
        super().__init__()
        if not (model.stage.first and model.stage.last):
            raise ModelLoadError(
                f"--pipeline-parallel-size {len(model.stage.layers)}: a model that makes vectors or scores is not "
                "split into stages: use --tensor-parallel-size"
            )
        self.model = model
        self.head = head
        self.size = head.size
        self.is_causal = is_causal
        self.heads, self.hidden_size = model.heads, model.hidden_size
        self.stage, self.windows = model.stage, model.windows
        self._names = names
        self._unused = tuple(unused)

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return self.model.kv_specs(block, max_model_len)

    def fit_context(self, context: int) -> None:
        if isinstance(self.model, FitsContext):
            self.model.fit_context(context)

    def forward(self, batch: ForwardBatch) -> Hidden:
        computed = self.model.forward(batch)
        assert isinstance(computed, Hidden), "there is one stage"
        return computed

    def pool(self, hidden: Hidden, lengths: Tensor, params: Sequence[PoolParams]) -> list[Tensor]:
        head = self.head
        raw = head(hidden.last, lengths)  # [B or T, size] float32
        if isinstance(head, VectorHead):
            return [
                head.finish(vector, each.dimensions, each.normalize)
                for vector, each in zip(raw, params, strict=True)
            ]
        if head.by_token:
            raw = raw.split(lengths.tolist())
        return [head.finish(scores, each.activate).flatten() for scores, each in zip(raw, params, strict=True)]

    def locate(self, tensor: str) -> Target | None:
        stem, _, kind = tensor.rpartition(".")
        if stem in self._names:
            return Target(f"head.{self._names[stem]}.{kind}")
        if tensor.startswith(self._unused):
            return None
        target = self.model.locate(tensor)
        return None if target is None else _within(target)

    def aliases(self) -> Mapping[str, Target]:
        named = self.model.aliases()
        return {name: _within(target) for name, target in named.items() if not name.startswith(self._unused)}


def _within(target: Target) -> Target:
    return Target(f"model.{target.parameter}", target.shard, target.index)
