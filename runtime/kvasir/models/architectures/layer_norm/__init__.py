"""Families that normalise with LayerNorm instead of RMSNorm."""
