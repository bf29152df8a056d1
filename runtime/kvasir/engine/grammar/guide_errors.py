"""Errors of OutputGuide, without an import of llguidance."""


class GuideError(ValueError):
    """An output token that the constraint forbids, which is a defect."""


class GrammarTooComplex(GuideError):
    """The next mask needs too much work."""
