"""Errors of a request that a client sees."""

from typing import Final

from kvasir.link.protocol import RefusalKind

FAILED_REPEATEDLY: Final = "engine_failed_repeatedly"
OVERLOADED_RETRY_AFTER: Final = 1.0
UNAVAILABLE_RETRY_AFTER: Final = 1.0


class InvalidRequest(ValueError):
    """The request cannot be served as it is (400). The message has the necessary change."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        """OpenAI's error code, such as context_length_exceeded."""


class EngineUnavailable(Exception):
    """No engine accepts requests now (503)."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyRequests(Exception):
    """A bound on requests in flight is reached (429)."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailed(Exception):
    """The engine failed this request, or was lost (500, or an error in the stream)."""

    def __init__(self, message: str, code: str = "request_failed") -> None:
        super().__init__(message)
        self.code = code


def failed_repeatedly(count: int) -> RequestFailed:
    return RequestFailed(
        f"{count} engines failed in steps that computed this request, so it is not given to another one: send it "
        "with another prompt or other parameters; the logs of the engines have the cause",
        FAILED_REPEATEDLY,
    )


def in_field(error: InvalidRequest, field: str | None) -> InvalidRequest:
    if field is None or error.param is not None or "grammar" not in str(error):
        return error
    return InvalidRequest(f"{field}: {error}", field, error.code)


def failure_of(message: str, refusal: RefusalKind | None) -> Exception:
    match refusal:
        case RefusalKind.INVALID | RefusalKind.ADAPTER_UNFIT:
            return InvalidRequest(message)
        case RefusalKind.OVERLOADED:
            return TooManyRequests(message, OVERLOADED_RETRY_AFTER)
        case RefusalKind.UNAVAILABLE | RefusalKind.ADAPTER_UNREAD:
            return EngineUnavailable(message, UNAVAILABLE_RETRY_AFTER)
        case _:
            return RequestFailed(message)
