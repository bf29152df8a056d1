"""Limits and monitors of ZMQ sockets."""

import struct
from typing import Final

import zmq

# For each peer; a full queue loses it. 20 s at 100 steps/s: longer than the heartbeat timeout.
QUEUE_MESSAGES: Final = 2048

# A larger message closes the connection.
MAX_MESSAGE_BYTES: Final = 64 * 2**20

CONNECTION_EVENTS: Final = (
    zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)

_CRYPTOGRAPHIC = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_…
_MECHANISM_MISMATCH = 0x11000002


def limit(socket: zmq.Socket[bytes], burst: int = 0) -> None:
    # `burst`: messages sent at once, in addition to those of steps
    socket.linger = 0
    socket.sndhwm = QUEUE_MESSAGES + burst
    socket.rcvhwm = QUEUE_MESSAGES
    socket.maxmsgsize = MAX_MESSAGE_BYTES


def open_monitor(
    context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], name: str, begin: bool = False
) -> zmq.Socket[bytes]:
    """Return a socket with the connection events of `socket`. `name` is unique in the context. `begin`: also report
    new connections, with their file descriptor.
    """
    address = f"inproc://{name}"
    socket.monitor(address, CONNECTION_EVENTS | zmq.Event.CONNECTED if begin else CONNECTION_EVENTS)
    monitor = context.socket(zmq.PAIR)
    monitor.linger = 0
    monitor.connect(address)
    return monitor


def parse_event(frames: list[bytes]) -> tuple[int, int]:
    event, value = struct.unpack("=HI", frames[0])
    return event, value


def handshake_failure(event: int, value: int) -> str | None:
    match event:
        case zmq.Event.HANDSHAKE_FAILED_AUTH:
            return "the server does not admit the client's key"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL if value == _CRYPTOGRAPHIC:
            return "the server's key is not the client's server.public: check that the keys belong together"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL if value == _MECHANISM_MISMATCH:
            return "one side has --link-keys and the other has none"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
            return f"the peer does not speak the link's protocol (ZMTP error {value:#x})"
        case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            return "the peer closed the connection during the handshake: check that the keys belong together"
    return None
