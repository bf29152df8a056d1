"""Find, download, read and check the files of a model. Imports no torch. Begin with source.py and model_info.py."""
