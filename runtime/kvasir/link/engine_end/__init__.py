"""The engine's end of the link: one thread with a DEALER socket per frontend.

Reading order: engine_link.py (the interface for the engine), announced_engine.py (the engine as frontends see it),
frontends.py (all frontends), conversation.py (the states of one of them), frontend_connection.py (its socket),
resolver.py (DNS names of frontends).
"""
