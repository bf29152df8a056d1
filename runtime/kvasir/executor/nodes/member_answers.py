"""The members' replies to frames, and their descriptions, for the threads that wait for them."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from kvasir.executor.nodes.node_messages import Describe
from kvasir.executor.processes.started_worker import STACK_SECONDS
from kvasir.executor.remote_workers import RemoteInterruptedError, RemoteSilentError

_DESCRIBE_SECONDS: Final = 2.0  # in addition to the workers' stacks


class MemberReplies:
    """Each member's replies, in the order of the frames. One thread reads."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.ranks_per_node = 0
        self._replies: SimpleQueue[tuple[int, list[bytes]] | None] = SimpleQueue()
        self._arrived: dict[int, deque[list[bytes]]] = {node: deque() for node in nodes}

    def put(self, node: int, bodies: list[bytes]) -> None:
        self._replies.put((node, bodies))

    def interrupt(self) -> None:
        self._replies.put(None)

    def read(self, seconds: float | None) -> list[bytes]:
        deadline = None if seconds is None else time.monotonic() + seconds
        arrived = self._arrived
        while not all(arrived.values()):
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                reply = self._replies.get(timeout=remaining)
            except Empty:
                raise RemoteSilentError(self.silent_ranks()) from None
            if reply is None:
                self._replies.put(None)
                raise RemoteInterruptedError
            arrived[reply[0]].append(reply[1])
        return [body for node in sorted(arrived) for body in arrived[node].popleft()]

    def silent_ranks(self) -> list[int]:
        with suppress(Empty):
            while (reply := self._replies.get_nowait()) is not None:
                self._arrived[reply[0]].append(reply[1])
            self._replies.put(None)
        size = self.ranks_per_node
        nodes = [node for node, replies in self._arrived.items() if not replies]
        return [rank for node in nodes for rank in range(node * size, (node + 1) * size)]


class Descriptions:
    """Asks members what their workers are doing. Any thread may call it."""

    def __init__(self, send: Callable[[int, Describe], None]) -> None:
        # `send` sends a question to a node
        self._send = send
        self._numbers = itertools.count(1)
        self._asking = threading.Lock()
        self._answers: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def put(self, question: int, text: str) -> None:
        self._answers.put((question, text))

    def ask(self, by_node: dict[int, list[int]]) -> str:
        with self._asking:
            questions = {node: next(self._numbers) for node in by_node}
            for node, number in questions.items():
                self._send(node, Describe(number, by_node[node]))
            most = max(map(len, by_node.values()), default=0)  # a node asks one worker after the other
            answers = self._wait(set(questions.values()), _DESCRIBE_SECONDS + most * STACK_SECONDS)
        return "; ".join(
            answers.get(number)
            or f"node {node} with the workers {', '.join(map(str, by_node[node]))} does not answer"
            for node, number in questions.items()
        )

    def _wait(self, questions: set[int], seconds: float) -> dict[int, str]:
        # Drops answers to earlier questions.
        deadline = time.monotonic() + seconds
        answers: dict[int, str] = {}
        while len(answers) < len(questions):
            try:
                number, text = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            if number in questions:
                answers[number] = text
        return answers
