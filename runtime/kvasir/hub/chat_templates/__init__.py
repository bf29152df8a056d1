"""Chat templates: reading, compiling and rendering them, and the forms of messages that they expect."""
