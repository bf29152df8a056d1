"""Formats of quantised checkpoints: what each layer's tensors hold, by its name. Without torch.

Reading order: layer_formats.py, layer_names.py, settings.py, then a reader per producer.
"""
