"""Connections. Reading order: tls.py, acceptor.py, connection.py, http_parser.py, the rest."""
