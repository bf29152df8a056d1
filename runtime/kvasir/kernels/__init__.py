"""Kernels of Kvasir's own; each has a reference in plain torch next to its caller in `kvasir.layers`."""
