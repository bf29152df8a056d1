"""Packings: the tensors of each format, and their way to the one layout."""
