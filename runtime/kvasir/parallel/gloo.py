"""Gloo with one I/O thread for all groups of a process, which sleeps while nothing is exchanged.

Gloo's own threads, one for each group, wake up 100 times a second: they wait for events for 10 ms at a time. The
kernel may end such a timeout later, by the timer slack of the thread, which a thread inherits from its creator.
Events, tensors and the death of a peer for example, are not delayed.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch.distributed as dist

BACKEND: Final = "kvasir_gloo"
INTERFACE: Final = "GLOO_SOCKET_IFNAME"
"""The variable with the name of the network interface; unset: the one of the host's name."""
_PR_SET_TIMERSLACK: Final = 29
_SLACK_SECONDS: Final = 1.0
"""The end of the groups waits for one timeout at most."""


@cache
def register_gloo() -> str:
    """Register the backend for the groups that are made next. Return its name for torch.distributed."""
    devices: list[Any] = []

    def create(options: Any, _: object) -> Any:
        if not devices:
            interface = os.environ.get(INTERFACE)
            devices.append(start_device(interface=interface) if interface else start_device())
        own = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        own._devices = devices
        own._timeout = options.timeout
        return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, own)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    return BACKEND


def start_device(**place: str) -> Any:
    """Start an I/O thread. `place`: its `interface`, or `hostname`, the address of one; without it gloo chooses."""
    gloo = dist.ProcessGroupGloo
    with _timer_slack(_SLACK_SECONDS):
        return gloo.create_device(**place) if place else gloo.create_default_device()


@contextmanager
def _timer_slack(seconds: float) -> Iterator[None]:
    """Give the threads that this one starts meanwhile a timer slack. Without it they only wake up more often."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(int(seconds * 1e9)), 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(0), 0, 0, 0)  # this thread's default
