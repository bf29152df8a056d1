"""Kvasir's kernels. Each has a reference in plain torch next to its caller in `kvasir.layers`."""
