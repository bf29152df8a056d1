"""The engine's end of the link: one thread with a DEALER socket per frontend.

Reading order: engine_link.py (the engine's interface), announced_engine.py, frontends.py,
frontend_connection.py.
"""
