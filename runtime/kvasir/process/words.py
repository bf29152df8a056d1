"""Agreement of numbers and nouns in messages."""


def count(number: int, noun: str) -> str:
    """Return "1 request", "2 requests"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
