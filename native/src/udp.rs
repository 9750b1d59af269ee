//! One UDP socket: batches of datagrams in and out, and when the kernel has some.

mod readiness;
mod refusals;
mod send;
pub mod socket;
