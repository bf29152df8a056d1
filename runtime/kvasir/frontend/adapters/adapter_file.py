"""AdapterFile: the list of adapters in a file that an operator changes while the frontend runs."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvasir.config.lora_settings import MAX_FILE_BYTES, LoraModule, read_modules_file
from kvasir.config.options import ConfigError
from kvasir.frontend.adapters.served_adapters import ServedAdapters
from kvasir_contract.status_report import ReportedAdapters, adapter_list_digest

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 30.0  # for adapters that could not be read


class AdapterFile:
    """Reads the list again when it changes. One that cannot be read changes nothing and is reported."""

    def __init__(self, path: str, adapters: ServedAdapters, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._adapters = adapters
        self._clock = clock
        self._digest = self._logged = ""  # of the list whose adapters have been read
        self._taken = ""  # of the last content of the file
        self._modules: tuple[LoraModule, ...] = ()
        self._fault = ""  # of the list
        self._errors: Mapping[str, Exception] = {}
        self._retry_at = 0.0
        self._stamp: tuple[int, ...] | None = None
        self._task: asyncio.Task[None] | None = None

    def read_first(self) -> None:
        """Read the list and its adapters, before the event loop runs. Raises ConfigError for an unusable list."""
        self._stamp = self._present_stamp()
        if not self._take_list():
            raise ConfigError(f"--lora-modules-file {self._path}: {self._fault}")
        self._finish(self._adapters.load_now(self._modules))

    def tick(self) -> None:
        """Begin to read what has changed; called every second."""
        if self._task is not None and not self._task.done():
            return
        stamp = self._present_stamp()
        if stamp != self._stamp or ((self._errors or self._fault) and self._clock() >= self._retry_at):
            self._stamp = stamp
            self._task = asyncio.create_task(self.refresh())

    async def refresh(self) -> None:
        if self._take_list():
            self._remove_unlisted()
            self._finish(await self._adapters.load([each for each in self._modules if not self._serves(each)]))

    def report(self) -> ReportedAdapters:
        problems = [self._fault] if self._fault else [f"{name}: {error}" for name, error in self._errors.items()]
        return ReportedAdapters(self._digest, len(self._adapters), tuple(problems))

    def _take_list(self) -> bool:
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
        if self._digest != self._logged:
            self._logged = self._digest
            log.info("%s: %s", self._path, _summary([*self._adapters]))

    def _remove_unlisted(self) -> None:
        wanted = {module.name for module in self._modules}
        for name in [name for name in self._adapters if name not in wanted]:
            self._adapters.remove(name)

    def _present_stamp(self) -> tuple[int, ...] | None:
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
