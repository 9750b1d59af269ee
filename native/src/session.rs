//! The engine, and each connection of it from its first packet to its last.

mod close;
mod connection_task;
pub mod context;
mod endpoints;
pub mod engine;
mod liveness;
pub mod memory_sharing;
pub mod peer_session;
mod receive;
mod served_endpoint;
mod shared_messages;
pub mod statistics;
pub mod tick;
pub mod transmit;
