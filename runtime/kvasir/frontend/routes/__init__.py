"""One module per endpoint family; each offers the routes that app.py includes."""
