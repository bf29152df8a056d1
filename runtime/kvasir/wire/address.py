"""Link addresses: the values of `--link`, and which of them may be used without keys."""

import ipaddress
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from kvasir.config.options import ConfigError

MAX_IPC_PATH = 107
"""Bytes in the path of a Unix socket: the limit of the kernel."""


@dataclass(frozen=True)
class LinkAddress:
    """A parsed `ipc:///path` or `tcp://host:port`."""

    text: str
    """As the user wrote it."""
    path: str = ""
    """The path of an ipc:// address; empty for tcp://."""
    host: str = ""
    """An IP address, a name, or `*`; `localhost` is stored as 127.0.0.1."""
    port: int = 0

    @property
    def is_ipc(self) -> bool:
        return bool(self.path)

    @property
    def ip(self) -> str | None:
        """The host if it is an IP address; None for a name, which has to be looked up."""
        try:
            return str(ipaddress.ip_address(self.host))
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        return self.ip is not None and ipaddress.ip_address(self.ip).is_loopback

    def endpoint(self, ip: str = "") -> str:
        """Return the endpoint for ZMQ. `ip` replaces a host name that was looked up."""
        if self.is_ipc:
            return f"ipc://{self.path}"
        host = ip or self.host
        return f"tcp://[{host}]:{self.port}" if ":" in host else f"tcp://{host}:{self.port}"


def parse_address(text: str) -> LinkAddress:
    """Parse a link address. Raises ConfigError if it is not one."""
    scheme, found, rest = text.partition("://")
    if found and scheme == "ipc":
        return _parse_ipc(text, rest)
    if found and scheme == "tcp":
        return _parse_tcp(text, rest)
    raise ConfigError(
        f"--link {text!r} is not a link address: write it like ipc:///run/kvasir/link or tcp://host:5557"
    )


def _parse_ipc(text: str, path: str) -> LinkAddress:
    if not os.path.isabs(path) or path.endswith("/"):
        raise ConfigError(f"--link {text}: give the absolute path of a socket, for example ipc:///run/kvasir/link")
    if (size := len(os.fsencode(path))) > MAX_IPC_PATH:
        raise ConfigError(
            f"--link {text}: the path has {size} bytes and a Unix socket takes {MAX_IPC_PATH}: choose a shorter one"
        )
    return LinkAddress(text, path=path)


def _parse_tcp(text: str, rest: str) -> LinkAddress:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):(\d{1,5})", rest)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(f"--link {text}: write it like tcp://host:5557 or tcp://[::1]:5557")
    host = match[1] or match[2]
    address = LinkAddress(text, host="127.0.0.1" if host == "localhost" else host, port=int(match[3]))
    if match[1] and address.ip is None:
        raise ConfigError(f"--link {text}: {host} is not an IPv6 address")
    return address


def require_keys(address: LinkAddress, has_keys: bool) -> None:
    """Raise ConfigError if the link would leave this machine without encryption."""
    if not address.is_ipc and not address.is_loopback and not has_keys:
        raise ConfigError(
            f"--link {address.text} leaves this machine and would not be encrypted: give --link-keys, a directory "
            "with this side's keys, or use ipc:// or a loopback address"
        )


def private_directory(address: LinkAddress) -> None:
    """Create the directory of an ipc:// socket if needed, and check that only this user can enter it.

    The directory is the only protection of the socket. Raises ConfigError.
    """
    directory = Path(address.path).parent
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigError(f"--link {address.text}: {directory} cannot be used: {error.strerror}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"--link {address.text}: others can reach {directory}; use a directory that only you can enter "
            f"(chmod 700 {directory})"
        )
