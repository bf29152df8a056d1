"""A model and its files: where they come from, what they say, whether they are whole. Torch-free."""
