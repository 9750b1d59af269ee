//! What the connections of an engine share, and what they ask of it.

use std::sync::Arc;

use crate::events::{EventQueue, Failure};
use crate::matching::matcher::Matcher;
use crate::runtime::fault_injection::Faults;
use crate::runtime::supervision::OnPanic;
use crate::settings::Settings;

pub struct Context {
    pub settings: Settings,
    pub events: Arc<EventQueue>,
    pub matcher: Matcher,
    pub faults: Arc<Faults>,
}

/// The engine, as far as its connections know it. It stands beside the context, not in it: the engine would own itself.
pub trait Registry: OnPanic {
    /// Whether the engine has ended.
    fn over(&self) -> bool;

    /// How many connections there are to a name.
    fn connections_to(&self, peer: &str) -> usize;

    /// A connection has ended. Whether it was the last one to its peer that was up.
    fn forget(&self, connection: u64, peer: &str, was_up: bool) -> bool;

    /// A send has ended.
    fn forget_send(&self, operation: u64);

    /// A send whose task panicked has come to its end.
    fn fail_send(&self, operation: u64, failure: Failure);

    /// Whether a panic left something in the middle that all connections share.
    fn half_done(&self) -> bool;
}
