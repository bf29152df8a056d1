"""Gloo with one I/O thread for all groups of a process."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch.distributed as dist

BACKEND: Final = "kvasir_gloo"
# Unset: that of the host's name.
INTERFACE: Final = "GLOO_SOCKET_IFNAME"
_PR_SET_TIMERSLACK: Final = 29
_SLACK_SECONDS: Final = 1.0


@cache
def register_gloo() -> str:
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
    # `interface`, or else that of the address `hostname`.
    gloo = dist.ProcessGroupGloo
    with _timer_slack(_SLACK_SECONDS):
        return gloo.create_device(**place) if place else gloo.create_default_device()


@contextmanager
def _timer_slack(seconds: float) -> Iterator[None]:
    # Gloo's threads poll every 10 ms; the slack prolongs this, and delays no event.
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(int(seconds * 1e9)), 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(0), 0, 0, 0)  # this thread's default
