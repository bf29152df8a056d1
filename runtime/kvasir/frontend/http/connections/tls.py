"""TLS of the frontend's port, with certificates that are read again when their files change."""

import logging
import os
import ssl
from typing import Final

from kvasir.config.options import ConfigError
from kvasir.config.tls_settings import TlsConfig

log = logging.getLogger(__name__)

OLDEST_VERSION: Final = ssl.TLSVersion.TLSv1_2

_Stamp = tuple[tuple[int, int, int], ...]


class Tls:
    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError with the option of the file."""
        self._config = config
        self._stamp = _stamp_of(config)
        self._current = _context(config)
        self._fault = ""
        # The server keeps listening with this one; each handshake switches to the current one, open connections
        # keep theirs.
        self.context = _context(config)
        self.context.sni_callback = self._switch

    @classmethod
    def of(cls, config: TlsConfig) -> "Tls | None":
        """Return None for plain HTTP. Raises ConfigError."""
        return None if config.ssl_certfile is None else cls(config)

    def refresh(self) -> None:
        """Read files that have changed, with --enable-ssl-refresh."""
        if not self._config.enable_ssl_refresh:
            return
        stamp = _stamp_of(self._config)
        if stamp == self._stamp:
            return
        try:
            self._current = _context(self._config)
        except ConfigError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.warning("%s; the last certificate stays", error)
            return
        self._stamp, self._fault = stamp, ""
        log.info("new certificate read from %s", self._config.ssl_certfile)

    def _switch(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, begun: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = OLDEST_VERSION
    assert config.ssl_certfile is not None
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_no_password)
    except (OSError, ValueError) as error:
        files = f"--ssl-certfile {config.ssl_certfile}"
        if config.ssl_keyfile is not None:
            files += f", --ssl-keyfile {config.ssl_keyfile}"
        raise ConfigError(f"{files}: {_reason(error)}; give a certificate and its private key, as PEM") from None
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(
                f"--ssl-ca-certs {config.ssl_ca_certs}: {_reason(error)}; give certificates as PEM"
            ) from None
    context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
    if config.ssl_ciphers is not None:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except ssl.SSLError:
            raise ConfigError(
                f"--ssl-ciphers {config.ssl_ciphers}: OpenSSL has no such cipher; see `openssl ciphers`"
            ) from None
    return context


def _no_password() -> str:
    raise ValueError("the private key is encrypted, and there is no option for its password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _stamp_of(config: TlsConfig) -> _Stamp:
    # Also changes with the files behind the symbolic links of a mounted Secret.
    return tuple(_file_stamp(file) for file in (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs))


def _file_stamp(file: str | None) -> tuple[int, int, int]:
    if file is None:
        return (0, 0, 0)
    try:
        status = os.stat(file)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
