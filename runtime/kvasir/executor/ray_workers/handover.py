"""Hands a worker's settings and file descriptors to a process that is not a child of the engine.

The engine listens on an abstract Unix socket and accepts only its own user. Only its network namespace can connect.
The connection then is the control socket.
"""

import os
import secrets
import socket
import struct
from typing import Final, NamedTuple

import msgspec

from kvasir.executor.processes.rendezvous import descriptor_of
from kvasir.executor.processes.worker_messages import MAX_PACKET_BYTES, WorkerSetup, decode_setup, encode

_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid
_MAX_DESCRIPTORS: Final = 16


class HandoverError(Exception):
    pass


class Delivery(NamedTuple):
    setup: WorkerSetup
    stdout: int
    stderr: int


class HandoverListener:
    def __init__(self) -> None:
        self.address = f"kvasir-worker-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind("\0" + self.address)
        self._socket.listen(1)

    def accept(self, seconds: float) -> tuple[socket.socket, int] | None:
        """Return connection and process id; None if no worker came in time."""
        self._socket.settimeout(seconds)
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            return None
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(packed)
        if user != os.geteuid():
            connection.close()
            return None
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
        return connection, pid

    def close(self) -> None:
        self._socket.close()


def hand_over(control: socket.socket, setup: WorkerSetup) -> None:
    """Send the setup with its descriptors, stdout and stderr."""
    meeting = descriptor_of(setup.rendezvous)
    rendezvous = [] if meeting is None else [meeting]
    descriptors = [*setup.handle.descriptors, setup.stack_descriptor, 1, 2, *rendezvous]
    socket.send_fds(control, [encode(setup)], descriptors)


def take_over(address: str) -> tuple[socket.socket, Delivery]:
    """Return the control socket and the setup with local descriptors. Raises HandoverError."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        control.connect("\0" + address)
    except OSError as error:
        raise HandoverError(
            f"the engine's socket cannot be reached ({error}): Ray's processes of this node must run in the same "
            "container as the engine"
        ) from error
    packet, descriptors, _, _ = socket.recv_fds(
        control, MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    if not packet:
        raise HandoverError("the engine has ended")
    setup = decode_setup(packet)
    segment, requests, replies, stack, stdout, stderr, *rendezvous = descriptors
    handle = msgspec.structs.replace(setup.handle, segment=segment, requests=requests, replies=replies)
    setup = msgspec.structs.replace(
        setup, handle=handle, stack_descriptor=stack, rendezvous=rendezvous[0] if rendezvous else None
    )
    return control, Delivery(setup, stdout, stderr)
