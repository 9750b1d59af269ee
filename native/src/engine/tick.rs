//! Ten times a second: what every connection measured, and whether its peer still lives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use crate::guard::locked;
use crate::link::{Link, Stage};
use crate::measure::Measured;

const TICK: Duration = Duration::from_millis(100);
/// A tick that came so much later was not the network's fault: peers are given that time again.
const HELD_UP: Duration = Duration::from_millis(500);

/// What one connection measured.
pub struct LinkStatistics {
    pub number: u64,
    pub peer: Arc<str>,
    pub remote: SocketAddr,
    pub bulk: bool,
    pub rtt: Duration,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub lost_packets: u64,
    pub sent_packets: u64,
    pub path_mtu_bytes: u16,
    pub measured: Measured,
}

pub(super) async fn tick(engine: Arc<Engine>) {
    let mut before = Instant::now();
    while !engine.over() {
        tokio::time::sleep(TICK).await;
        engine.events.fault("tick");
        let now = Instant::now();
        let late = now.saturating_duration_since(before).saturating_sub(TICK);
        before = now;
        let held_up = if late > HELD_UP { late } else { Duration::ZERO };
        let links: Vec<Arc<Link>> = locked(&engine.links).values().cloned().collect();
        let mut snapshot = Vec::with_capacity(links.len());
        for link in links {
            link.tick(now, held_up);
            if link.is(Stage::Up) {
                snapshot.extend(statistics_of(&link));
            }
        }
        *locked(&engine.snapshot) = Arc::new(snapshot);
    }
}

fn statistics_of(link: &Link) -> Option<LinkStatistics> {
    let stats = link.connection()?.stats()?;
    Some(LinkStatistics {
        number: link.number,
        peer: link.peer(),
        remote: link.remote(),
        bulk: link.bulk,
        rtt: stats.path.rtt,
        sent_bytes: stats.udp_tx.bytes,
        received_bytes: stats.udp_rx.bytes,
        lost_packets: stats.path.lost_packets,
        sent_packets: stats.path.sent_packets,
        path_mtu_bytes: stats.path.current_mtu,
        measured: link.measure.read(),
    })
}
