"""AdaptedLayers: the layers of a model that take adapters, by the names of PEFT's modules."""

from kvasir.hub.text_part import text_tensor
from kvasir.layers.adapters.adapted_method import AdaptedMethod
from kvasir.layers.linear import Linear
from kvasir.models.causal_lm import LoadableTransformer, Target


class UnfitAdapter(ValueError):
    """The adapter is not one of this model."""


class AdaptedLayers:
    """`text_only`: of a multimodal checkpoint, whose adapters may have other parts too."""

    def __init__(self, model: LoadableTransformer, *, text_only: bool) -> None:
        self._model = model
        self._text_only = text_only
        linears = [module for module in model.modules() if isinstance(module, Linear)]
        self._names = {linear.name for linear in linears}
        self.methods = {each.name: each.method for each in linears if isinstance(each.method, AdaptedMethod)}

    def place(self, module: str) -> Target | None:
        """Return layer and shard of a module; None: this pipeline stage, or the text model, does not have it.

        Raises UnfitAdapter.
        """
        tensor: str | None = f"{module}.weight"
        if self._text_only:
            tensor = text_tensor(f"{module}.weight")
        if tensor is None or (found := self._model.locate(tensor)) is None:
            return None
        layer = found.parameter.removesuffix(".weight")
        if layer in self.methods and found.index is None:
            return Target(layer, found.shard)
        if found.index is not None or ".experts" in layer:
            raise UnfitAdapter(f"it adapts {module}, and experts of a mixture are not adapted")
        if layer in self._names or layer == "embed_tokens":
            raise UnfitAdapter(
                f"it adapts {module}, and only linear layers within the decoder's layers are adapted"
            )
        raise UnfitAdapter(
            f"it adapts {module}, which this model does not have: is it an adapter of another model?"
        )
