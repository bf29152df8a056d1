"""What can go wrong with a request, as the frontend tells it to the client; raised by AsyncLLM and its parts."""


class InvalidRequest(ValueError):
    """The request cannot be served as it is (400). The message says what to change."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """The field of the request that is wrong."""
        self.code = code
        """A word for programs, as in OpenAI's API: context_length_exceeded."""


class EngineUnavailable(Exception):
    """No engine takes requests now (503)."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which it is worth trying again."""


class TooManyRequests(Exception):
    """A bound on requests in flight is reached (429)."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailed(Exception):
    """The engine failed this request, or was lost, after it was accepted (500, or an error in the stream)."""
