"""Connections of clients, from the listening socket to the bytes of an answer.

Reading order: listener.py, tls.py, acceptor.py, connection.py, http_parser.py, receiver.py, answer_writes.py,
disconnection.py, idle_connections.py.
"""
