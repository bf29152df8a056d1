"""Mixtures of experts. Reading order: expert_routing.py, experts.py, expert_exchange.py, sparse_moe.py."""
