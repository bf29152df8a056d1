"""Find, download, read and check the files of a model, without torch. Begin with source.py."""
