"""Encoders: bert.py (whose family normalises after its additions), nomic_bert.py, gte.py, modern_bert.py."""
