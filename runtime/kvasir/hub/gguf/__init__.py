"""Models in GGUF, the format of llama.cpp. Reading order: gguf_file, gguf_config, gguf_tokenizer, gguf_model."""
