"""Why an OutputGuide cannot go on; without llguidance, which engines without constraints never import."""


class GuideError(ValueError):
    """An output token that the constraint forbids: a defect."""


class GrammarTooComplex(GuideError):
    """The next mask needs more work than one mask may take."""
