"""A clock that a test sets."""


class FakeClock:
    """Returns `now`, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
