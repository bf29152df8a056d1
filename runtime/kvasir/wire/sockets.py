"""The options of ZMQ sockets, and the events of their monitors."""

import struct
from typing import Final

import zmq

# Messages that wait for a peer, in each process. At 100 steps per second a peer may stall for about 20 s, longer
# than the heartbeat timeout. A full queue means that the peer is lost.
QUEUE_MESSAGES: Final = 2048

# A larger message closes the connection. A token takes 4 bytes, each full block of a prompt 16 more for its hash.
MAX_MESSAGE_BYTES: Final = 64 * 2**20

CONNECTION_EVENTS: Final = (
    zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)

_CRYPTOGRAPHIC = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_MECHANISM_MISMATCH = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


def limit(socket: zmq.Socket[bytes], burst: int = 0) -> None:
    # `burst`: messages that may be sent at once, in addition to those of steps
    socket.linger = 0
    socket.sndhwm = QUEUE_MESSAGES + burst
    socket.rcvhwm = QUEUE_MESSAGES
    socket.maxmsgsize = MAX_MESSAGE_BYTES


def open_monitor(
    context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], name: str, begin: bool = False
) -> zmq.Socket[bytes]:
    """Return a socket that receives the connection events of `socket`. `name` must be unique in the context.

    `begin`: also the beginning of each connection, with its file descriptor as value.
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
    """Return why the handshake failed; None for other events."""
    match event:
        case zmq.Event.HANDSHAKE_FAILED_AUTH:
            return "the frontend does not admit the engine's key"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL if value == _CRYPTOGRAPHIC:
            return "the engine's server.public is not the frontend's key"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL if value == _MECHANISM_MISMATCH:
            return "one side has --link-keys and the other has none"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
            return f"the peer does not speak the link's protocol (ZMTP error {value:#x})"
        case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            return "the peer closed the connection during the handshake: check that the keys belong together"
    return None
