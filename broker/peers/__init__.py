"""What brokers send to each other: `hive-broker/1` (docs/reference/broker-protocol.md).

`protocol` is pure; `channel` has the engine. Loaded only where `broker.toml` has `[peers]`.
"""
