import socket
import subprocess
import sys

import pytest

from kvasir.config.options import ConfigError
from kvasir.executor.nodes.addresses import common_address, interface_of, own_address, plain, reached_at
from runtime.executor.nodes.node_pair import address_for_others


def test_own_address_towards_loopback_is_loopback() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == interface_of("127.0.0.9") == interface_of("::1") == "lo"


def test_interface_of_an_address_of_this_machine() -> None:
    try:
        address = own_address("192.0.2.1")  # an address for documentation: only the route to it counts
    except OSError:
        pytest.skip("this machine has no route to other machines")
    name = interface_of(address)
    assert name in [name for _, name in socket.if_nameindex()]
    assert name != "lo"


def test_interface_of_a_second_address_of_an_interface() -> None:
    """In a network of its own, where the loopback interface gets two addresses."""
    script = """
import ctypes, fcntl, socket, struct, sys
NEW_USER, NEW_NETWORK, SET_ADDRESS = 0x10000000, 0x40000000, 0x8916
if ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK):
    sys.exit(77)
from kvasir.executor.nodes.addresses import interface_of
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    for name, address in ((b"lo", "10.1.2.3"), (b"lo:1", "10.1.2.4")):
        fcntl.ioctl(probe, SET_ADDRESS, struct.pack("16sH2x4s16x", name, socket.AF_INET, socket.inet_aton(address)))
print(interface_of("10.1.2.3"), interface_of("10.1.2.4"))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    if result.returncode == 77:
        pytest.skip("this user may not make a network")
    assert result.stdout.split() == ["lo", "lo"], result.stderr


def test_ipv4_address_of_a_socket_for_both_kinds_is_plain() -> None:
    """A socket for IPv4 and IPv6 writes the address of an IPv4 peer like this; no interface has it."""
    assert plain("::ffff:10.0.0.7") == "10.0.0.7"
    assert plain("10.0.0.7") == "10.0.0.7"
    assert plain("2001:db8::7") == "2001:db8::7"


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_address_of_another_machine_is_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match=f"no network interface of this machine has the address {address}"):
        interface_of(address)


def test_one_address_has_to_suffice_for_all_nodes() -> None:
    assert common_address({"node 1": "127.0.0.1", "node 2": "127.0.0.1"}) == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"127.0.0.1 to node 1, 10.0.0.7 to node 2\): give an IP address"):
        common_address({"node 1": "127.0.0.1", "node 2": "10.0.0.7"})


def test_own_address_that_a_peer_has_connected_to_counts() -> None:
    assert reached_at("127.0.0.9", "127.0.0.1") == "127.0.0.9"
    own = address_for_others()
    if own is not None:
        assert reached_at(own, "127.0.0.6") == reached_at(f"::ffff:{own}", "127.0.0.6") == own


@pytest.mark.parametrize("named", ["192.0.2.7", "0.0.0.0", "::", "not an address", ""])
def test_route_counts_if_another_machine_has_the_address(named: str) -> None:
    assert reached_at(named, "127.0.0.1") == "127.0.0.1"
