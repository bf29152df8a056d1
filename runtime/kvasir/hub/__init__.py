"""A model's files: find, download, read and check them. Imports no torch.

Reading order: source.py (from a name to files), huggingface.py (downloads), model_info.py (config.json),
weights.py, tokenizer.py, tokenizer_files.py, convert_tokenizer.py, quoted_tokens.py, chat_template.py,
message_forms.py, reading.py, hub_errors.py.
"""
