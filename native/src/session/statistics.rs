//! What one connection measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::peer_session::Link;
use crate::congestion::path_measurement::Measured;

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

pub(super) fn statistics_of(link: &Link) -> Option<LinkStatistics> {
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
