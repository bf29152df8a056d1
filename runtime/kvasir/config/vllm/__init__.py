"""Command lines of `vllm serve`, understood by Kvasir's commands.

Reading order: options.json (the names, generated from vLLM's releases), verdicts.py (what becomes of each),
given_options.py (words become options), config_file.py (--config), arguments.py (rewrites a command line),
variables.py (VLLM_… in the environment).
"""
