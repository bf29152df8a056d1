"""Read a manifest (manifest.py): YAML, the CRD's schema and its CEL rules."""
