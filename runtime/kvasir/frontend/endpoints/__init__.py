"""The endpoints: a folder for each large one, with request.py (the body), answer.py and route.py."""
