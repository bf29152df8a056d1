"""`LoRARequest`: the LoRA adapter of a prompt. The names are vLLM's."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.config.lora_settings import LoRAConfig
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.hub.hub_errors import HubError
from kvasir.offline.engine_options import in_python
from kvasir.request.adapter import Adapter


@dataclass(frozen=True)
class LoRARequest:
    """Raises ValueError without a name or a path."""

    lora_name: str
    lora_int_id: int
    """Without effect: adapters differ by their files."""
    lora_path: str
    """hf://org/name[@revision], or a directory."""
    base_model_name: str | None = None
    load_inplace: bool = False
    """Read the files again."""

    def __post_init__(self) -> None:
        for name in ("lora_name", "lora_path"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise ValueError(f"{name} is {value!r}: give a text")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path


LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None


@dataclass(frozen=True)
class AdapterOfPrompt:
    request: LoRARequest
    adapter: Adapter


class OfflineAdapters:
    """Reads each adapter once."""

    def __init__(self, config: LoRAConfig, download_dir: str | None) -> None:
        self._config = config
        self._download_dir = download_dir
        self._read: dict[str, Adapter] = {}

    def for_each(self, asked: LoRARequests, count: int) -> list[AdapterOfPrompt | None]:
        """Return the adapter of each prompt. `asked`: one for all, or one for each. Raises ValueError."""
        if not isinstance(asked, Sequence):
            return [self.of(asked)] * count
        if not asked:
            return [None] * count
        if len(asked) != count:
            raise ValueError(f"{len(asked)} lora_requests for {count} prompts: give one for all, or one for each")
        return [self.of(each) for each in asked]

    def of(self, request: LoRARequest | None) -> AdapterOfPrompt | None:
        """Raises ValueError."""
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            raise ValueError(f"lora_request is of type {type(request).__name__}: give a LoRARequest")
        if not self._config.enable_lora:
            raise ValueError("lora_request: this LLM accepts no LoRA adapters: create it with enable_lora=True")
        adapter = self._read.get(request.lora_path)
        if adapter is None or request.load_inplace:
            adapter = self._read[request.lora_path] = self._adapter(request)
        return AdapterOfPrompt(request, Adapter(request.lora_name, adapter.source, adapter.digest))

    def _adapter(self, request: LoRARequest) -> Adapter:
        try:
            rank = self._config.max_lora_rank
            found = read_adapter(request.lora_path, max_rank=rank, download_dir=self._download_dir)
        except HubError as error:
            raise ValueError(f"lora_request {request.lora_name}: {in_python(str(error))}") from None
        return found.named(request.lora_name)
