//! What Python sees: the engine's calls, the delivery of events, and the memory that is handed over.

pub mod collective_api;
pub mod engine_api;
pub mod event_delivery;
pub mod header_tuples;
pub mod received_buffer;
