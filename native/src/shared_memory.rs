//! Memory that two processes of one host share: how they come to it, the rings in it, and one link between two engines.
//!
//! What a peer writes there is judged like what it sends: every index, length and kind is copied out once, and checked
//! before anything is done with it.

pub mod handshake;
pub mod link;
pub mod region;
pub mod ring;
