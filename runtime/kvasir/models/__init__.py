"""Model definitions and the loading of their weights.

Reading order: causal_lm.py and forward_batch.py (the interface), decoder.py, decoder_layer.py, decoder_config.py,
registry.py, load_model.py, loader.py, dummy_weights.py, split_check.py, check_ranks.py, config_reader.py,
rope_config.py, model_load_error.py; then architectures/ and transformers_code/.
"""
