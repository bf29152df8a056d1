"""Decides what a client may do: what its key allows, and its share of the slots of --max-live-requests."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.types import Scope

from kvasir.client.request_errors import TooManyRequests
from kvasir.frontend.errors import ApiError
from kvasir.frontend.http.auth import ApiKeys

Headers = Iterable[tuple[bytes, bytes]]
"""Header names are in lower case."""

# a slot is free when any request of the client ends
RETRY_AFTER: Final = 1.0

_UNAUTHORIZED: Final = {"WWW-Authenticate": "Bearer"}


class Access:
    def __init__(self, keys: ApiKeys, admin_keys: ApiKeys) -> None:
        self.keys = keys
        self._admin_keys = admin_keys

    @property
    def has_administrators(self) -> bool:
        return self._admin_keys.needed

    def refusal(self, headers: Headers) -> ApiError | None:
        if not self.keys.needed:
            return None
        key = key_of(headers)
        if key is None:
            message = "an API key is needed: send the header Authorization: Bearer YOUR_KEY"
            return ApiError(401, message, code="missing_api_key", headers=_UNAUTHORIZED)
        if not self._is_known(key):
            # litellm raises AuthenticationError for the first words
            message = "Incorrect API key provided: use one of the keys that this server was started with"
            return ApiError(401, message, code="invalid_api_key", headers=_UNAUTHORIZED)
        return None

    def control_refusal(self, headers: Headers) -> ApiError | None:
        if not self._admin_keys.needed:
            message = (
                "control calls are not allowed: start the server with --admin-api-key KEY or "
                "--admin-api-key-dir DIR (in an InferenceService: frontend.adminApiKeys), and send such a key"
            )
            return ApiError(403, message, code="control_calls_disabled")
        if self._admin_keys.problem is not None:  # the problem names files, so only the log has it
            message = "control calls are not possible: this server has no usable admin API key, see its log"
            return ApiError(403, message, code="control_calls_disabled")
        key = key_of(headers)
        if key is None:
            message = "a control call needs an admin API key: send the header Authorization: Bearer ADMIN_KEY"
            return ApiError(401, message, code="missing_api_key", headers=_UNAUTHORIZED)
        if self._admin_keys.accept(key):
            return None
        if self.keys.accept(key):
            message = "a control call needs an admin API key, and this API key is not one: see --admin-api-key"
            return ApiError(403, message, code="admin_api_key_required")
        message = "the admin API key is wrong: use one of those that this server was started with"
        return ApiError(401, message, code="invalid_api_key", headers=_UNAUTHORIZED)

    def _is_known(self, key: bytes) -> bool:
        # always compares with both kinds, so that the time reveals nothing
        of_client, of_administrator = self.keys.accept(key), self._admin_keys.accept(key)
        return of_client or of_administrator


def key_of(headers: Headers) -> bytes | None:
    """Return the bearer token, or the key of Anthropic's clients."""
    scheme, _, token = _value(headers, b"authorization").partition(b" ")
    key = token if scheme.lower() == b"bearer" else _value(headers, b"x-api-key")
    return key.strip() or None


def _value(headers: Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")


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

    @contextmanager
    def taken(self, client: str, slots: int) -> Iterator[None]:
        self.hold(client, slots)
        try:
            yield
        finally:
            self.release(client, slots)

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
