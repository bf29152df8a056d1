"""Connections. Reading order: listener.py, tls.py, acceptor.py, connection.py, http_parser.py, the rest."""
