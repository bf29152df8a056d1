"""Command lines of `vllm serve`: options.json (their names), verdicts.py (what becomes of each), arguments.py
(rewrites them)."""
