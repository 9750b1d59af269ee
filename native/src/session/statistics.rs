//! What one connection measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::peer_session::PeerSession;
use crate::congestion::path_measurement::PathSample;

/// What one connection measured.
pub struct ConnectionStatistics {
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
    pub measured: PathSample,
    /// Payload bytes through shared memory.
    pub shared_sent_bytes: u64,
    pub shared_received_bytes: u64,
}

pub(super) fn statistics_of(session: &PeerSession) -> Option<ConnectionStatistics> {
    let stats = session.connection()?.stats()?;
    let link = session.link();
    let (sent, received) = link.map_or((0, 0), |link| {
        (link.sent_bytes.load(Relaxed), link.received_bytes.load(Relaxed))
    });
    Some(ConnectionStatistics {
        number: session.number,
        peer: session.peer(),
        remote: session.remote(),
        bulk: session.bulk,
        rtt: stats.path.rtt,
        sent_bytes: stats.udp_tx.bytes,
        received_bytes: stats.udp_rx.bytes,
        lost_packets: stats.path.lost_packets,
        sent_packets: stats.path.sent_packets,
        path_mtu_bytes: stats.path.current_mtu,
        measured: session.measure.read(),
        shared_sent_bytes: sent,
        shared_received_bytes: received,
    })
}
