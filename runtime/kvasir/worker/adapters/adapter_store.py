"""AdapterStore: the adapters in a worker's memory. The engine loads, drops and places them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvasir.layers.adapters.adapter_matrices import AdapterMatrices
from kvasir.models.causal_lm import LoadableTransformer
from kvasir.worker.adapters.adapted_layers import AdaptedLayers
from kvasir.worker.adapters.adapter_reading import AdapterReading
from kvasir.worker.worker_calls import worker_call

# Steps wait for a piece; Python's own switch between threads takes 5 ms.
PIECE_SECONDS: Final = 0.005


class AdapterStore:
    def __init__(self) -> None:
        self._layers: AdaptedLayers | None = None
        self._reading: dict[str, AdapterReading] = {}  # by digest
        self._held: dict[str, dict[str, AdapterMatrices]] = {}  # by digest and layer
        self._placed: dict[int, str] = {}  # digest by slot

    def open(self, model: LoadableTransformer, *, text_only: bool) -> None:
        """Take a loaded model. `text_only`: see AdaptedLayers."""
        self._layers = AdaptedLayers(model, text_only=text_only)

    @worker_call
    def load_adapter(self, digest: str, path: str) -> bool:
        """Read a piece of an adapter. Return whether it is complete. Raises HubError and UnfitAdapter."""
        if digest in self._held:
            return True
        reading = self._reading.pop(digest, None) or AdapterReading(Path(path), self._opened())
        if not reading.advance(PIECE_SECONDS):
            self._reading[digest] = reading
            return False
        self._held[digest] = reading.matrices
        return True

    @worker_call
    def drop_adapter(self, digest: str) -> None:
        """Free an adapter's memory, also if it is not complete. No row may use its slot any more."""
        self._reading.pop(digest, None)
        self._held.pop(digest, None)
        for slot in [slot for slot, placed in self._placed.items() if placed == digest]:
            del self._placed[slot]
            for method in self._opened().methods.values():
                method.slots.hold(slot, None)

    def place(self, slots: Sequence[tuple[int, str]]) -> None:
        """Put adapters into slots."""
        for slot, digest in slots:
            matrices = self._held[digest]
            self._placed[slot] = digest
            for name, method in self._opened().methods.items():
                method.slots.hold(slot, matrices.get(name))

    def close(self) -> None:
        """Free all memory, while calls by name still refer to this store."""
        self._layers = None
        self._reading, self._held = {}, {}

    def _opened(self) -> AdaptedLayers:
        assert self._layers is not None, "load comes first"
        return self._layers
