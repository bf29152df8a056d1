"""Reading a manifest: YAML, the CRD's schema and its CEL rules.

Reading order: manifest.py, crd_schema.py, cel_rules.py.
"""
