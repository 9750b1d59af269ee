//! One UDP socket: batches of datagrams in and out, and when the kernel has some.

mod readiness;
pub mod refusals;
mod send;
pub mod socket;
