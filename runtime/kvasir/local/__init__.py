"""Services as processes of this machine, for `kvasir up` and `kvasir serve`. Begin with run.py and place.py."""
