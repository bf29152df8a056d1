"""The keys that clients may send as bearer tokens: from --api-key, and from --api-key-dir as its files change."""

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from kvasir.config.options import ConfigError
from kvasir.config.settings import ServerConfig

log = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two looks at the directory."""

_Stamp = tuple[tuple[str, int, int, int], ...]


class ApiKeys:
    """Kept as digests, so that a comparison takes the same time whatever the key's length."""

    def __init__(self, config: ServerConfig) -> None:
        self._given = _digests(config.api_key)
        self._directory = Path(config.api_key_dir) if config.api_key_dir else None
        self._mounted: list[bytes] = []
        self._stamp: _Stamp | None = None
        self._checked = 0.0
        if self._directory is None:
            return
        try:
            self._read(self._directory)
        except OSError as error:
            raise ConfigError(f"--api-key-dir {self._directory}: {error.strerror}") from error

    @property
    def needed(self) -> bool:
        return bool(self._given) or self._directory is not None

    def accept(self, key: bytes) -> bool:
        """Compares with every key, always."""
        self._refresh()
        digest = hashlib.sha256(key).digest()
        found = False
        for known in (*self._given, *self._mounted):
            found |= hmac.compare_digest(digest, known)
        return found

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._directory is None or now - self._checked < CHECK_INTERVAL:
            return
        try:
            self._read(self._directory)
        except OSError as error:  # a mount in the middle of its update: the keys known stay
            log.warning("--api-key-dir %s cannot be read (%s): its last keys stay", self._directory, error.strerror)
            self._checked = now

    def _read(self, directory: Path) -> None:
        """Take the files' contents as keys if any changed; names with a dot are a mounted Secret's bookkeeping."""
        self._checked = time.monotonic()
        files = sorted(path for path in directory.iterdir() if not path.name.startswith(".") and path.is_file())
        stamp = tuple(
            (path.name, status.st_ino, status.st_mtime_ns, status.st_size)
            for path, status in ((path, path.stat()) for path in files)
        )
        if stamp == self._stamp:
            return
        keys = [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]
        self._mounted = _digests(key for key in keys if key)
        self._stamp = stamp
        if self._mounted:
            log.info("%d API keys read from %s", len(self._mounted), directory)
        else:
            log.warning("no API key in %s: every request will be refused", directory)


def _digests(keys: Iterable[str]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]
