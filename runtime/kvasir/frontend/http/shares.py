"""Limits on one client's slots of --max-live-requests."""

from collections import Counter
from typing import Any, Final

from starlette.types import Scope

from kvasir.client.request_errors import TooManyRequests
from kvasir.frontend.http.access import key_of

# a slot is free when any request of the client ends
RETRY_AFTER: Final = 1.0


class Shares:
    """The slots of each client, at most `limit`."""

    # fixed, because a taken slot cannot be taken back when others come
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held: Counter[str] = Counter()

    def hold(self, client: str, slots: int) -> None:
        """Take slots. Raises TooManyRequests, and takes none, without room."""
        if self.held[client] and self.held[client] + slots > self._limit:
            raise TooManyRequests(
                f"this client has {self.held[client]} requests in flight and asks for {slots} more, and its share "
                f"is {self._limit} (--max-client-share): try again when some have finished",
                RETRY_AFTER,
            )
        self.held[client] += slots

    def release(self, client: str, slots: int) -> None:
        self.held[client] -= slots
        if not self.held[client]:
            del self.held[client]


def client_of(scope: Scope, keys: int) -> tuple[str, str]:
    """Return the holder of slots (a key or a connection) and the client of the tokenizer (a key or a host)."""
    if keys > 1:
        key = (key_of(scope["headers"]) or b"").decode("latin-1")
        return key, key
    host, port = scope["client"] or ("", 0)
    return f"{host}:{port}", host


def slots_of(body: dict[str, Any]) -> int:
    """Return the requests to engines: the choices of all prompts."""
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
    return prompts * max(1, _count(body, "n"), _count(body, "best_of"))


def _count(body: dict[str, Any], name: str) -> int:
    # the body is not validated yet
    value = body.get(name)
    return value if type(value) is int else 1
