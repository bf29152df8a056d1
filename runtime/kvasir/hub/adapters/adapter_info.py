"""AdapterInfo: a LoRA adapter on this machine, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from kvasir.hub.adapters.adapter_config import CONFIG_FILE, AdapterConfig, read_config
from kvasir.hub.adapters.adapter_tensors import WEIGHTS_FILE, AdaptedModule, read_modules
from kvasir.hub.hub_errors import HubError
from kvasir.hub.source import fetch_files, normalise
from kvasir.request.adapter import Adapter

_CONTENT: Final = f"a LoRA adapter ({CONFIG_FILE}, {WEIGHTS_FILE})"
_BYTES_AT_ONCE: Final = 2**20


@dataclass(frozen=True)
class AdapterInfo:
    source: str  # hf://org/name[@revision] or file:///path
    path: Path
    digest: str  # of its files, 64 hex digits
    config: AdapterConfig
    modules: Mapping[str, AdaptedModule]  # by name in the model
    stamp: tuple[int, ...] = ()  # see `stamp_of`

    @property
    def rank(self) -> int:
        """Return the highest rank of its modules."""
        return max(module.rank for module in self.modules.values())

    @property
    def alpha(self) -> float:
        return self.config.alpha

    @property
    def base_model(self) -> str:
        """Return the name of the model it was trained on; "" if unknown."""
        return self.config.base_model

    @property
    def target_modules(self) -> tuple[str, ...]:
        """Return the last parts of the modules' names."""
        return tuple(sorted({name.rpartition(".")[2] for name in self.modules}))

    def named(self, name: str) -> Adapter:
        """Return the adapter for requests. Engines fetch the commit that was read, also if its branch moves."""
        source = self.source
        if source.startswith("hf://"):
            source = f"{source.partition('@')[0]}@{self.path.name}"
        return Adapter(name, source, self.digest)


def read_adapter(source: str, *, max_rank: int | None = None, download_dir: str | None = None) -> AdapterInfo:
    """Fetch an adapter and check its files. Raises HubError, in one line, for one that cannot be served.

    `max_rank`: of --max-lora-rank; None: any.
    """
    source = normalise(source)
    path = fetch_files(source, [CONFIG_FILE, WEIGHTS_FILE], _CONTENT, download_dir)
    config = read_config(path)
    stamp = stamp_of(path)
    info = AdapterInfo(source, path, _digest(path), config, read_modules(path, config), stamp)
    if max_rank is not None and info.rank > max_rank:
        raise HubError(f"{source} has rank {info.rank}, and --max-lora-rank is {max_rank}: raise it")
    return info


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return numbers that differ when the files of an adapter have changed; empty if they are gone."""
    try:
        found = [(path / name).stat() for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except OSError:
        return ()
    return tuple(number for each in found for number in (each.st_mtime_ns, each.st_size, each.st_ino))


def _digest(path: Path) -> str:
    digest = sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        file = path / name
        try:
            with file.open("rb") as stream:
                digest.update(file.stat().st_size.to_bytes(8, "little"))
                while data := stream.read(_BYTES_AT_ONCE):
                    digest.update(data)
        except FileNotFoundError:
            continue  # reading the file reports it
        except OSError as error:
            raise HubError(f"{file} cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()
