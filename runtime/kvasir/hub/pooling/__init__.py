"""How a model makes vectors or scores: pooling_info.py, module_files.py, label_tokens.py."""
