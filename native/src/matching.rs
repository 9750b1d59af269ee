//! Which message goes to which receive: per peer, by key, with a bounded store for what nobody has posted for.

pub mod holds;
pub mod incoming_message;
pub mod matcher;
pub mod queues;
mod unexpected_store;
mod withdraw;
