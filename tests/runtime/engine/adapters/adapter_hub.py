"""A hub of adapters without files, and engines that read from it."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from kvasir.engine.adapters.adapter_checks import AdapterChecks
from kvasir.engine.adapters.adapter_gate import AdapterGate
from kvasir.engine.adapters.adapter_memory import AdapterMemory
from kvasir.executor.executor import Executor
from kvasir.hub.adapters.adapter_config import AdapterConfig
from kvasir.hub.adapters.adapter_info import AdapterInfo
from kvasir.hub.adapters.adapter_tensors import AdaptedModule
from kvasir.hub.hub_errors import DownloadFailed, HubError
from kvasir.request.adapter import Adapter
from runtime.engine.core_harness import Answer, CoreHarness, add_request

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]


@dataclass
class Hub:
    """Adapters whose digest is their source, or the one in `digests`."""

    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Outputs of an adapter's module, by source: it takes 28 bytes, and 12 for each of them."""
    now: float = 0.0
    reads: list[str] = field(default_factory=list)

    def read(self, source: str) -> AdapterInfo:
        self.reads.append(source)
        if source == "gone":
            raise HubError("gone does not exist")
        if source == "slow":
            raise DownloadFailed("the hub cannot be reached")
        config = AdapterConfig(4, 8, "", {}, {}, use_rslora=False)
        modules = {"q_proj": AdaptedModule(1, 1.0, 7, self.sizes.get(source, 1))}
        return AdapterInfo(source, Path("/nowhere"), self.digests.get(source, source), config, modules)

    def engine(
        self, slots: int = 2, most: int = 3, most_bytes: int = sys.maxsize, **changes: object
    ) -> CoreHarness:
        def gate(executor: Executor) -> AdapterGate:
            memory = AdapterMemory(executor, AdapterChecks(self.read), most, most_bytes=most_bytes)
            return AdapterGate(memory, slots, clock=lambda: self.now)

        return CoreHarness(adapters=gate, **changes)  # type: ignore[arg-type]


def adapter(name: str) -> Adapter:
    return Adapter(name, name, name)


def add(engine: CoreHarness, request_id: str, name: str = "", max_tokens: int = 4) -> Answer:
    message = add_request(request_id, PROMPT, max_tokens, adapter=adapter(name) if name else None, ignore_eos=True)
    return engine.add(message)
