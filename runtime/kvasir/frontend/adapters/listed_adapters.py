"""ListedAdapters: the adapters that --lora-modules or a file names, read while the frontend runs."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvasir.config.lora_settings import MAX_FILE_BYTES, AdaptersConfig, LoraModule, read_modules_file
from kvasir.config.options import ConfigError
from kvasir.frontend.adapters.served_adapters import ServedAdapters
from kvasir_contract.status_report import ReportedAdapters, adapter_list_digest

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 30.0  # for adapters that could not be read
MAX_UNREADY_SECONDS: Final = 30.0  # a hub that does not answer must not keep the model from its clients


class ListedAdapters:
    """Reads the adapters, and again when the file changes. One that cannot be read changes nothing, is reported and
    tried again.
    """

    def __init__(
        self, config: AdaptersConfig, adapters: ServedAdapters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises ConfigError for an unusable list."""
        self.read_once = asyncio.Event()
        self._path = None if config.lora_modules_file is None else Path(config.lora_modules_file)
        self._adapters = adapters
        self._clock = clock
        self._digest = self._logged = ""  # of the list whose adapters have been read
        self._taken = ""  # of the last content of the file
        self._modules = config.modules
        self._fault = ""  # of the list
        self._errors: Mapping[str, Exception] = {}
        self._retry_at = 0.0
        self._ready_at = clock() + MAX_UNREADY_SECONDS
        self._stamp = self._present_stamp()
        self._max_rank = 0
        self._task: asyncio.Task[None] | None = None
        if not self._take_list():
            raise ConfigError(f"--lora-modules-file {self._path}: {self._fault}")
        self._unread = {module.name for module in self._modules}

    @property
    def delays_readiness(self) -> bool:
        return not self.read_once.is_set() and self._clock() < self._ready_at

    def is_unread(self, name: str) -> bool:
        """Return whether the name is listed, and its first adapter has neither been read nor failed yet."""
        return name in self._unread and name not in self._adapters and name not in self._errors

    def tick(self, max_rank: int = 0) -> None:
        """Begin to read what has changed; called every second. `max_rank`: of the engines; 0 if unknown."""
        self._max_rank = max_rank
        if self._task is not None and not self._task.done():
            return
        stamp = self._present_stamp()
        is_due = (self._errors or self._fault) and self._clock() >= self._retry_at
        if self._task is None or stamp != self._stamp or is_due:
            self._stamp = stamp
            self._task = asyncio.create_task(self.refresh())

    async def refresh(self) -> None:
        if not self._take_list():
            return
        if self._path is None:
            self._unread -= {*self._adapters}  # read, or loaded by a request since
        else:
            self._remove_unlisted()
            self._unread = {module.name for module in self._modules if not self._serves(module)}
        errors = await self._adapters.load([each for each in self._modules if each.name in self._unread])
        self._unread = set(errors)
        self._finish(errors)
        self.read_once.set()

    def report(self) -> ReportedAdapters | None:
        """Return the report on the file; None without one."""
        if self._path is None:
            return None
        problems = [self._fault] if self._fault else [f"{name}: {error}" for name, error in self._errors.items()]
        problems += [] if self._fault else self._above_rank()
        return ReportedAdapters(self._digest, len(self._adapters), tuple(problems))

    def _above_rank(self) -> list[str]:
        served = {name: self._adapters.get(name) for name in list(self._adapters)}
        return [
            f"{name}: it has rank {each.rank}, and engines have --max-lora-rank {self._max_rank}: raise it in "
            "engine.extraArgs"
            for name, each in served.items()
            if each is not None and each.rank > self._max_rank > 0
        ]

    def _take_list(self) -> bool:
        if self._path is None:
            return True
        try:
            content = _read(self._path)
            self._taken = adapter_list_digest(content)
            self._modules = read_modules_file(content, self._path)
        except (OSError, ConfigError) as error:
            fault = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            if fault != self._fault:
                log.error("%s: the adapters stay as they are: %s", self._path, fault)
            self._fault, self._digest, self._retry_at = fault, self._taken, self._clock() + RETRY_SECONDS
            return False
        self._fault = ""
        return True

    def _serves(self, module: LoraModule) -> bool:
        served = self._adapters.get(module.name)
        return served is not None and served.module == module

    def _finish(self, errors: Mapping[str, Exception]) -> None:
        for name, error in errors.items():
            if str(self._errors.get(name)) != str(error):
                log.error("the LoRA adapter %s cannot be served: %s", name, error)
        self._errors, self._retry_at = errors, self._clock() + RETRY_SECONDS
        self._digest = self._taken
        if self._digest != self._logged or not self.read_once.is_set():
            self._logged = self._digest
            log.info("%s: %s", self._path or "--lora-modules", _summary([*self._adapters]))

    def _remove_unlisted(self) -> None:
        wanted = {module.name for module in self._modules}
        for name in [name for name in self._adapters if name not in wanted]:
            self._adapters.remove(name)

    def _present_stamp(self) -> tuple[int, ...] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


def _summary(names: Sequence[str]) -> str:
    return f"the LoRA adapters are {', '.join(names)}" if names else "there are no LoRA adapters"
