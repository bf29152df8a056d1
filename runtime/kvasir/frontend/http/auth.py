"""API keys of clients or administrators, from options and files.

If keys are required, no state of the directory opens the service: without a usable key every request is rejected.
"""

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError

log = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two reads."""
MAX_KEY_BYTES: Final = 64 * 1024

_Stamp = tuple[tuple[str, int, int, int], ...]


class ApiKeys:
    def __init__(self, given: Iterable[str], directory: str | None, flag: str) -> None:
        """`flag`: the option, for messages. Raises ConfigError for an unreadable directory."""
        # digests, so that comparisons take the same time for any length
        self._given = _digests(given)
        self._directory = Path(directory) if directory else None
        self.needed = bool(self._given) or self._directory is not None
        self.count = len(self._given)
        self._title = f"{flag}-dir {directory}"
        self._mounted: list[bytes] = []
        self._fault = ""
        """Why no key of the directory can be used."""
        self._stamp: _Stamp | None = None
        self._checked = 0.0
        self._lock = threading.Lock()
        if self._directory is None:
            return
        try:
            self._read(self._directory)
        except OSError as error:
            raise ConfigError(f"{self._title}: {error.strerror}") from error

    @classmethod
    def of_clients(cls, config: ServerConfig) -> Self:
        return cls(config.api_key, config.api_key_dir, "--api-key")

    @classmethod
    def of_administrators(cls, config: ServerConfig) -> Self:
        return cls(config.admin_api_key, config.admin_api_key_dir, "--admin-api-key")

    @property
    def problem(self) -> str | None:
        self._refresh()
        return None if self._given or self._mounted else self._fault or None

    def accept(self, key: bytes) -> bool:
        # always compares with every key, so that the time reveals nothing
        self._refresh()
        digest = hashlib.sha256(key).digest()
        found = False
        for known in (*self._given, *self._mounted):
            found |= hmac.compare_digest(digest, known)
        return found

    def _refresh(self) -> None:
        if self._directory is None:
            return
        with self._lock:
            if time.monotonic() - self._checked < CHECK_INTERVAL:
                return
            try:
                self._read(self._directory)
            except OSError as error:
                if self._directory.is_dir():  # a file vanished during an update: the next check finds it
                    log.warning("%s cannot be read (%s): its last keys stay", self._directory, error.strerror)
                else:
                    self._take((), [], [f"{self._title} does not exist any more"])

    def _read(self, directory: Path) -> None:
        # names with a dot are a mounted Secret's own files
        self._checked = time.monotonic()
        files = sorted(path for path in directory.iterdir() if not path.name.startswith(".") and path.is_file())
        stamp = tuple(
            (path.name, status.st_ino, status.st_mtime_ns, status.st_size)
            for path, status in ((path, path.stat()) for path in files)
        )
        if stamp == self._stamp:
            return
        keys, faults = [], []
        for path in files:
            try:
                keys.append(_key_in(path))
            except FileNotFoundError:
                raise  # during an update: the next check finds it complete
            except OSError as error:
                faults.append(f"{path} cannot be read: {error.strerror}")
            except ValueError as error:
                faults.append(f"{path} {error}")
        self._take(stamp, keys, faults)

    def _take(self, stamp: _Stamp, keys: list[str], faults: list[str]) -> None:
        if not keys and not faults:
            faults = [f"{self._title} holds no key file"]
        fault = "" if keys else f"no API key can be used: {faults[0]}; write a key into a file there"
        if keys:
            log.info("%d API keys read from %s", len(keys), self._directory)
        if fault != self._fault or keys:
            for text in faults:
                log.warning("%s", text)
        self._stamp, self._mounted, self._fault = stamp, _digests(keys), fault
        self.count = len(self._given) + len(keys)


def _key_in(path: Path) -> str:
    """Raises ValueError for a file without a key."""
    with path.open("rb") as file:
        content = file.read(MAX_KEY_BYTES + 1)
    if len(content) > MAX_KEY_BYTES:
        raise ValueError(f"is larger than {MAX_KEY_BYTES} bytes")
    try:
        key = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    if not key:
        raise ValueError("is empty")
    if not key.isprintable():
        raise ValueError("holds line breaks or control characters, so it is not one key")
    return key


def _digests(keys: Iterable[str]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]
