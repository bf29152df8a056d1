"""The addresses of this machine: which one a peer can reach, and to which network interface it belongs."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvasir.config.options import ConfigError

_LOOPBACK: Final = "lo"
_SIOCGIFADDR: Final = 0x8915
_ANY_PORT: Final = 9
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")


def plain(address: str) -> str:
    """Return an IPv4 address that a socket for both kinds has written as IPv6 (::ffff:10.0.0.7) as IPv4."""
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if ip.version == 6 else None
    return str(ip if mapped is None else mapped)


def own_address(peer: str) -> str:
    """Return the IP address of this machine from which a peer is reached. Raises OSError without a route."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, _ANY_PORT))  # chooses a route; a datagram socket sends nothing
        return str(probe.getsockname()[0])


def reached_at(named: str, peer: str) -> str:
    """Return the address of this machine at which a peer reaches it. Raises OSError without a route to the peer.

    `named`: the address that the peer has connected to. `peer`: the peer's address as this machine sees it, which
    is a loopback address behind the proxy of a service mesh. If another machine has `named`, the route decides.
    """
    try:
        named = plain(named)
        interface_of(named)
        return named
    except ValueError:
        return own_address(peer)


def common_address(own: Mapping[str, str]) -> str:
    """Return the one address of this machine at which all peers reach it. `own`: it for each peer, by name.

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
    """Return the network interface that has this IP address. Raises ConfigError."""
    ip = ipaddress.ip_address(address)
    if ip.is_loopback:
        return _LOOPBACK
    names = [name for _, name in socket.if_nameindex()]
    found = _with_ipv4(names, address) if ip.version == 4 else _with_ipv6(ip.packed.hex())
    if found is None:
        raise ConfigError(
            f"no network interface of this machine has the address {address}; its interfaces are {', '.join(names)}"
        )
    return found


def _with_ipv4(names: list[str], address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _with_ipv6(digits: str) -> str | None:
    for line in _IPV6_ADDRESSES.read_text().splitlines():
        fields = line.split()
        if fields[0] == digits:
            return fields[-1]
    return None
