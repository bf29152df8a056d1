"""Command lines of `vllm serve`, understood by Kvasir's commands.

Reading order: options.json (the names, generated from vLLM's releases), verdicts.py (what becomes of each),
arguments.py (rewrites a command line), config_file.py (--config), given_options.py (how words become options).
"""
