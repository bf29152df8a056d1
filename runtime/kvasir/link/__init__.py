"""What both ends of the link share: its addresses, its keys, its limits, and how a failed handshake is told.

Used by kvasir.client.engine_link (a frontend's end) and kvasir.engine.link (an engine's end); the messages
themselves are in kvasir.protocol.
"""
