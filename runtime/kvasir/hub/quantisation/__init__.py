"""Formats of quantised checkpoints. Reading order: layer_formats.py, layer_names.py, settings.py, the readers."""
