"""One module per endpoint family; each offers a FastAPI router that app.py includes."""
