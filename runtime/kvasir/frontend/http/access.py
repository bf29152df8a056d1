"""Decides what a key allows: an administrator's everything, a client's all but control calls."""

from collections.abc import Iterable
from typing import Final

from kvasir.frontend.errors import ApiError
from kvasir.frontend.http.auth import ApiKeys

Headers = Iterable[tuple[bytes, bytes]]
"""Header names are in lower case."""

_UNAUTHORIZED: Final = {"WWW-Authenticate": "Bearer"}


class Access:
    def __init__(self, keys: ApiKeys, admin_keys: ApiKeys) -> None:
        self.keys = keys
        self._admin_keys = admin_keys

    def refusal(self, headers: Headers) -> ApiError | None:
        """Return why a request is rejected."""
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
        """Return why a control call is rejected."""
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
