"""The addresses of this machine, and which of them a peer can reach."""

import ctypes
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvasir.config.options import ConfigError

_LOOPBACK: Final = "lo"
_SIOCGIFCONF: Final = 0x8912
_ADDRESS_BYTES: Final = 40
_MAX_ADDRESSES: Final = 4096
_ANY_PORT: Final = 9
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")


def plain(address: str) -> str:
    # A dual-stack socket writes ::ffff:10.0.0.7.
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if ip.version == 6 else None
    return str(ip if mapped is None else mapped)


def own_address(peer: str) -> str:
    """Return this machine's address on the route to a peer. Raises OSError without a route."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, _ANY_PORT))  # sends nothing, but chooses a route
        return str(probe.getsockname()[0])


def reached_at(named: str, peer: str) -> str:
    """Return the address at which a peer reaches this machine. Raises OSError without a route.

    `named`: as the peer has connected; the route decides if another machine has it. `peer`: loopback behind the
    proxy of a service mesh.
    """
    try:
        named = plain(named)
        interface_of(named)
        return named
    except ValueError:
        return own_address(peer)


def common_address(own: Mapping[str, str]) -> str:
    """Return the one address at which all peers reach this machine. `own`: by peer.

    Raises ConfigError if there are several: the exchanges of a rank use one interface.
    """
    if len(set(own.values())) > 1:
        each = ", ".join(f"{address} to {name}" for name, address in own.items())
        raise ConfigError(
            f"this node has another address for some of the nodes ({each}): give an IP address of this machine "
            "that all of them can reach as --master-addr"
        )
    return next(iter(own.values()))


def interface_of(address: str) -> str:
    """Return the network interface with this IP address. Raises ConfigError."""
    ip = ipaddress.ip_address(address)
    if ip.is_loopback:
        return _LOOPBACK
    found = _with_ipv4(address) if ip.version == 4 else _with_ipv6(ip.packed.hex())
    if found is None:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"no network interface of this machine has the address {address}; its interfaces are {names}"
        )
    return found


def _with_ipv4(address: str) -> str | None:
    # An interface may have several (eth0:1, for example).
    entries = bytearray(_MAX_ADDRESSES * _ADDRESS_BYTES)
    start = ctypes.addressof(ctypes.c_char.from_buffer(entries))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iP", len(entries), start))
    size, _ = struct.unpack("iP", answer)
    for at in range(0, size, _ADDRESS_BYTES):
        name, found = struct.unpack_from("16s4x4s", entries, at)
        if socket.inet_ntoa(found) == address:
            return str(name.split(b"\0")[0].decode().partition(":")[0])
    return None


def _with_ipv6(digits: str) -> str | None:
    for line in _IPV6_ADDRESSES.read_text().splitlines():
        fields = line.split()
        if fields[0] == digits:
            return fields[-1]
    return None
