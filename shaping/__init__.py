"""The kernel side of the broker: a wanted shape becomes an HTB tree, and what is ours can always be taken away again.

Importing this loads neither pyroute2 nor ctypes.
"""
