"""Mixtures of experts. Reading order: routing.py, experts.py, exchange.py, sparse_moe.py."""
