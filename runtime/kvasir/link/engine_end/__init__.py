"""The engine's end of the link: one thread with a DEALER socket per frontend.

Reading order: engine_link.py (the interface for the engine), announced_engine.py (the engine as frontends see it),
frontends.py (all frontends), conversation.py (states and events), frontend_connection.py (one frontend),
resolver.py (DNS names of frontends).
"""
