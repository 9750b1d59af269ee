//! quinn-proto driven by one task per socket: endpoints, connections and streams as tasks see them.

pub mod ack_policy;
pub mod address_validation;
pub mod connection;
mod datagrams_in;
mod datagrams_out;
mod dirty_list;
mod driver;
mod driver_state;
pub mod endpoint;
pub mod endpoint_state;
mod gso_size;
pub mod send_scheduler;
pub mod streams;
pub mod tls;
pub mod transport_config;
