"""Architectures with a mixture of experts. read_experts.py has what their config.json files share."""
