"""Formats of quantised checkpoints.

Reading order: layer_formats.py, layer_names.py, scheme_settings.py, then a reader per producer.
"""
