"""The `kvasir` command. main.py finds the sub-command; every other module is one sub-command, but api_client.py."""
