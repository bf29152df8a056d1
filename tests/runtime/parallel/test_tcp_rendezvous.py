"""Ranks in several pods find each other by a TCP store, whose port was taken before the first of them started."""

import concurrent.futures
import multiprocessing
import socket
import time

import pytest
import torch

from kvasir.parallel.start import init, leave
from kvasir.parallel.tcp_rendezvous import TcpRendezvous

WAIT = 60.0


def summed(
    rank: int, port: int, listener: socket.socket | None, incarnation: str = "a", timeout: float = WAIT
) -> float:
    """Return the sum of the ranks' numbers, 1 and 2. The rank with the listener serves the store."""
    descriptor = None if listener is None else listener.detach()
    state = init(rank, 2, TcpRendezvous("127.0.0.1", port, "lo", incarnation, descriptor), timeout)
    try:
        return state.tensor.all_reduce(torch.ones(1) * (rank + 1)).item()
    finally:
        leave()


def test_ranks_meet_at_a_port_that_listens_already() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        futures = [pool.submit(summed, 1, port, None), pool.submit(summed, 0, port, listener)]
        assert [future.result(timeout=2 * WAIT) for future in futures] == [3.0, 3.0]
    listener.close()


def test_ranks_of_another_incarnation_do_not_meet() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        futures = [
            pool.submit(summed, 1, port, None, "old", 3.0),
            pool.submit(summed, 0, port, listener, "new", 3.0),
        ]
        for future in futures:
            with pytest.raises(RuntimeError):
                future.result(timeout=2 * WAIT)
    listener.close()


def test_a_rank_without_its_store_gives_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts and never answers
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="no rank serves the store"):
            init(1, 2, TcpRendezvous("127.0.0.1", listener.getsockname()[1], "lo", "a"), 1.0)
        assert time.monotonic() - began < 30
