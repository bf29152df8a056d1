"""Pure functions from an InferenceService to the Kubernetes objects it consists of.

The operator applies them; `kvasir up` runs the same pod templates as local processes. So what the user asked for
goes into a container's arguments, and what depends on the place (addresses, ports, mounted directories, the rank)
into its environment, which `kvasir up` replaces by its own.

Read `children` first, then `engine` and `frontend`, which share `pod`; `pinning` compares releases.
"""
