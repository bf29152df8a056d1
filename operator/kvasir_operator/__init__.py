"""The Kvasir operator: turns InferenceServices into frontends and engines."""
