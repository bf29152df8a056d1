"""Connections. Reading order: tls.py, acceptor.py, connection.py, the rest."""
