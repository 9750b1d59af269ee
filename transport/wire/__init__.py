"""The bytes between transports, as `docs/reference/wire.md` fixes them: varints, headers, control frames, dtypes.

Pure functions over bytes: no sockets, no clock, nothing of QUIC.
"""
