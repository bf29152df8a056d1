"""Small pieces of messages."""


def count(number: int, noun: str) -> str:
    """Return "1 engine pod", "2 engine pods"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
