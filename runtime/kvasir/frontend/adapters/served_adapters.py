"""ServedAdapters: the LoRA adapters that requests may name as their model."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvasir.config.lora_settings import LoraModule
from kvasir.hub.adapters.adapter_info import AdapterInfo, read_adapter
from kvasir.hub.hub_errors import HubError
from kvasir.request.adapter import Adapter

log = logging.getLogger(__name__)

THREADS: Final = 4


@dataclass(frozen=True)
class ServedAdapter:
    adapter: Adapter
    module: LoraModule
    since: int  # in Unix time
    number: int  # of the load
    rank: int

    @property
    def parent(self) -> str | None:
        return self.module.parent


class ServedAdapters:
    """The adapters by name. A request keeps its adapter if the name gets another one, or is removed."""

    def __init__(self, model_names: Sequence[str], download_dir: str | None) -> None:
        self._model_names = frozenset(model_names)
        self._download_dir = download_dir
        self._by_name: dict[str, ServedAdapter] = {}
        self._num_loads = 0
        self._loading: Counter[str] = Counter()

    def __iter__(self) -> Iterator[str]:
        # threads read them in any order, and all frontends show one list
        return iter(sorted(self._by_name))

    def __len__(self) -> int:
        return len(self._by_name)

    def is_loading(self, name: str) -> bool:
        return self._loading[name] > 0

    def get(self, name: str) -> ServedAdapter | None:
        return self._by_name.get(name)

    async def load(self, modules: Sequence[LoraModule]) -> dict[str, HubError]:
        """Read adapters in threads, and serve each at once. Return the errors by name.

        Such an adapter stays as it was served before.
        """
        slots, names = asyncio.Semaphore(THREADS), [module.name for module in modules]
        self._num_loads += 1
        number = self._num_loads

        async def read(module: LoraModule) -> HubError | None:
            async with slots:
                return self._keep(module, await asyncio.to_thread(self._read, module), number)

        self._loading.update(names)
        try:
            found = await asyncio.gather(*map(read, modules))
        finally:
            self._loading.subtract(names)
        return {name: error for name, error in zip(names, found, strict=True) if error is not None}

    def remove(self, name: str) -> bool:
        return self._by_name.pop(name, None) is not None

    def _read(self, module: LoraModule) -> AdapterInfo | HubError:
        if module.name in self._model_names:
            return HubError(f"{module.name} is a name of the model: give the adapter another name")
        try:
            return read_adapter(module.source, weights=False, download_dir=self._download_dir)
        except HubError as error:
            return error
        except Exception as error:  # a defect must not end the reading of the others
            log.exception("reading the LoRA adapter %s failed", module.name)
            return HubError(f"{module.source} could not be read: {type(error).__name__}: {error}")

    def _keep(self, module: LoraModule, found: AdapterInfo | HubError, number: int) -> HubError | None:
        if isinstance(found, HubError):
            return found
        present = self._by_name.get(module.name)
        if present is None or present.number < number:  # a later load may have been faster
            self._by_name[module.name] = ServedAdapter(
                found.named(module.name), module, int(time.time()), number, found.rank
            )
        return None
