"""Kernels of Kvasir's own; each has a reference in plain torch beside its caller in `kvasir.layers`."""
