"""What brokers say to each other: `hive-broker/1` (docs/broker-protocol.md).

`wire`, `book` and `asking` are pure; `channel` has the engine. Loaded only where `broker.toml` has `[peers]`.
"""
