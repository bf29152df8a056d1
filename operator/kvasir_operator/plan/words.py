"""Agreement of numbers and nouns in messages."""


def count(number: int, noun: str) -> str:
    """Return "1 engine pod", "2 engine pods"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def verb(number: int, singular: str, plural: str) -> str:
    """Return the verb form that agrees with a number."""
    return singular if number == 1 else plural
