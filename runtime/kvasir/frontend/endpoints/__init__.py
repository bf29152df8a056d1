"""A folder for each family of endpoints: request.py (the body), answer.py, route.py."""
