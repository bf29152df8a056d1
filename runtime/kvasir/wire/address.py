"""Parse ZMQ addresses, look them up in the DNS, and check them for use without keys."""

import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from kvasir.config.options import ConfigError

MAX_IPC_PATH = 107  # the kernel's limit


@dataclass(frozen=True)
class LinkAddress:
    text: str
    path: str = ""
    host: str = ""  # an IP address, a name, or `*`; 127.0.0.1 for localhost
    port: int = 0
    option: str = "--link"

    @property
    def flag(self) -> str:
        return f"{self.option} {self.text}"

    @property
    def is_ipc(self) -> bool:
        return bool(self.path)

    @property
    def ip(self) -> str | None:
        try:
            return str(ipaddress.ip_address(self.host))
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        return self.ip is not None and ipaddress.ip_address(self.ip).is_loopback

    def endpoint(self, ip: str = "") -> str:
        if self.is_ipc:
            return f"ipc://{self.path}"
        host = ip or self.host
        return f"tcp://[{host}]:{self.port}" if ":" in host else f"tcp://{host}:{self.port}"


def parse_address(text: str, option: str = "--link") -> LinkAddress:
    """Raises ConfigError if it is not an address."""
    scheme, found, rest = text.partition("://")
    if found and scheme == "ipc":
        return _parse_ipc(text, rest, option)
    if found and scheme == "tcp":
        return _parse_tcp(text, rest, option)
    raise ConfigError(
        f"{option} {text!r} is not a link address: write it like ipc:///run/kvasir/link or tcp://host:5557"
    )


def tcp_address(host: str, port: int, option: str, text: str = "") -> LinkAddress:
    return LinkAddress(text or host, host="127.0.0.1" if host == "localhost" else host, port=port, option=option)


def _parse_ipc(text: str, path: str, option: str) -> LinkAddress:
    address = LinkAddress(text, path=path, option=option)
    if not os.path.isabs(path) or path.endswith("/"):
        raise ConfigError(f"{address.flag}: give the absolute path of a socket, for example ipc:///run/kvasir/link")
    if (size := len(os.fsencode(path))) > MAX_IPC_PATH:
        raise ConfigError(
            f"{address.flag}: the path has {size} bytes and a Unix socket takes {MAX_IPC_PATH}: shorten it"
        )
    return address


def _parse_tcp(text: str, rest: str, option: str) -> LinkAddress:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):(\d{1,5})", rest)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(f"{option} {text}: write it like tcp://host:5557 or tcp://[::1]:5557")
    host = match[1] or match[2]
    address = tcp_address(host, int(match[3]), option, text)
    if match[1] and address.ip is None:
        raise ConfigError(f"{option} {text}: {host} is not an IPv6 address")
    return address


def look_up(name: str) -> frozenset[str]:
    """Raises OSError. A name without addresses gives an empty set."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return frozenset()
        raise
    # One per pod: in a dual-stack cluster it has a record of each kind.
    ipv4 = frozenset(str(address[0]) for family, *_, address in found if family == socket.AF_INET)
    return ipv4 or frozenset(str(address[0]) for family, *_, address in found if family == socket.AF_INET6)


def require_keys(address: LinkAddress, has_keys: bool) -> None:
    """Raise ConfigError if messages would leave this machine without encryption."""
    if not address.is_ipc and not address.is_loopback and not has_keys:
        local = "ipc:// or a loopback address" if "://" in address.text else "a loopback address"
        raise ConfigError(
            f"{address.flag} leaves this machine and would not be encrypted: give --link-keys, a "
            f"directory with this side's keys, or use {local}"
        )


def private_directory(address: LinkAddress) -> None:
    # Only the directory protects the socket.
    directory = Path(address.path).parent
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigError(f"{address.flag}: {directory} cannot be used: {error.strerror}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{address.flag}: others can reach {directory}; use a directory that only you can enter "
            f"(chmod 700 {directory})"
        )
