//! The controllers by name.

use std::sync::Arc;

use quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};

use crate::bbr::SpannedBbrConfig;
use crate::delay_bound::DelayBoundConfig;
use crate::rate::{EndpointRate, FollowsRateConfig, Pace};

/// The controllers that a configuration can name.
pub const NAMES: [&str; 4] = ["cubic", "reno", "bbr", RATE];
pub const RATE: &str = "rate";

/// The factory for a name of `NAMES`, or for bulk.
///
/// `rate` is what `rate` follows, `pace` what it holds a connection's packets back by.
pub fn factory(
    name: &str,
    bulk: bool,
    rate: &Arc<EndpointRate>,
    pace: &Arc<Pace>,
) -> Option<Arc<dyn ControllerFactory + Send + Sync>> {
    if bulk {
        return Some(Arc::new(DelayBoundConfig));
    }
    match name {
        "cubic" => Some(Arc::new(CubicConfig::default())),
        "reno" => Some(Arc::new(NewRenoConfig::default())),
        "bbr" => Some(Arc::new(SpannedBbrConfig::default())),
        RATE => Some(Arc::new(FollowsRateConfig {
            rate: rate.clone(),
            pace: pace.clone(),
        })),
        _ => None,
    }
}

#[cfg(test)]
#[path = "pacing_tests.rs"]
mod pacing_tests;
