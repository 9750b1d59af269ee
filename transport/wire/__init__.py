"""The bytes between transports, as `docs/wire-protocol.md` fixes them: varints, headers, control frames, dtypes, codes.

Pure functions over bytes: no sockets, no clock, nothing of QUIC.
"""
