"""AdapterInfo: a LoRA adapter on this machine, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from kvasir.hub.adapters.adapter_config import CONFIG_FILE, AdapterConfig, read_config
from kvasir.hub.adapters.adapter_tensors import WEIGHTS_FILE, AdaptedModule, modules_of, read_modules
from kvasir.hub.hub_errors import HubError
from kvasir.hub.safetensors_file import tensor_shapes_in
from kvasir.hub.source import fetch_files, normalise, read_file_of
from kvasir.request.adapter import Adapter

_CONTENT: Final = f"a LoRA adapter ({CONFIG_FILE}, {WEIGHTS_FILE})"
_BYTES_AT_ONCE: Final = 2**20
HUB: Final = "hf://"
MAX_MERGED: Final = 3  # modules in a layer of an engine


@dataclass(frozen=True)
class AdapterInfo:
    source: str  # hf://org/name[@revision] or file:///path
    path: Path
    digest: str  # of its files, or of its commit in the hub; 64 hex digits
    config: AdapterConfig
    modules: Mapping[str, AdaptedModule]  # by name in the model
    stamp: tuple[int, ...] = ()  # see `stamp_of`

    @property
    def rank(self) -> int:
        """Return the highest rank of its modules."""
        return max(module.rank for module in self.modules.values())

    @property
    def num_numbers(self) -> int:
        """Return the numbers in an engine's memory, at most: with zeros, if q, k and v are merged."""
        modules = self.modules.values()
        return sum(each.rank * (each.inputs + MAX_MERGED * each.outputs) for each in modules)

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
        return Adapter(name, _at_commit(self.source, self.path), self.digest)


def read_adapter(
    source: str, *, weights: bool = True, max_rank: int | None = None, download_dir: str | None = None
) -> AdapterInfo:
    """Fetch an adapter and check its files. Raises HubError, in one line, for one that cannot be served.

    `weights`: download them; else their header is read. `max_rank`: of --max-lora-rank; None: any.
    """
    source = normalise(source)
    names = [CONFIG_FILE, WEIGHTS_FILE] if weights else [CONFIG_FILE]
    path = fetch_files(source, names, _CONTENT, download_dir)
    config = read_config(path)
    stamp = stamp_of(path)
    file = path / WEIGHTS_FILE
    if weights or file.exists() or not source.startswith(HUB):
        modules = read_modules(path, config)
    else:
        shapes = read_file_of(source, path.name, WEIGHTS_FILE, partial(tensor_shapes_in, file=file))
        modules = modules_of(file, shapes, config)
    info = AdapterInfo(source, path, _digest(source, path), config, modules, stamp)
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


def _at_commit(source: str, path: Path) -> str:
    return f"{source.partition('@')[0]}@{path.name}" if source.startswith(HUB) else source


def _digest(source: str, path: Path) -> str:
    if source.startswith(HUB):  # a commit does not change, and frontends do not download weights
        return sha256(_at_commit(source, path).encode()).hexdigest()
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
