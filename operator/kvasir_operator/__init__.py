"""The Kvasir operator, which turns InferenceServices into frontends and engines."""
