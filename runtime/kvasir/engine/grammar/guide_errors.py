"""Why an OutputGuide cannot go on. Without llguidance, which engines without constraints never import."""


class GuideError(ValueError):
    """An output token that the constraint forbids: a defect."""


class GrammarTooComplex(GuideError):
    """The grammar needs more work for the next token than one mask may take."""
