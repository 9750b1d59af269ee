//! How many datagrams go to the kernel at once.
//!
//! As many as the kernel takes (64 KiB), but no more than the paths of the socket carry in `BATCH_TIME`, all together, for they
//! begin with the same link: an urgent packet cannot pass what has been handed over. Nor more than the path itself carries
//! in `BATCH_TIME_SLOW`. What waits in the kernel is bounded likewise (`Socket::fit`).

use std::time::Duration;

use quinn_proto as proto;
use quinn_udp::{EcnCodepoint, Transmit};

/// At 1 Gbit/s as much as the kernel takes: half of it costs the receiver a sixth more, for waking up.
pub(super) const BATCH_TIME: Duration = Duration::from_micros(500);
/// Of bulk, which everything else on the link waits behind.
pub(super) const BATCH_TIME_BULK: Duration = Duration::from_micros(250);
/// With fewer the kernel's work for each call is felt: as many are sent at once on paths slower than 200 Mbit/s.
const SEGMENTS_SLOW: usize = 8;
/// But no more than a path carries in this: three batches wait in front of an urgent packet, two of them in the kernel.
const BATCH_TIME_SLOW: Duration = Duration::from_micros(2500);

/// Datagrams of `size` bytes to send at once on a path of `rate` bytes a second, where all paths of the socket carry `all`;
/// 0 is not known yet.
pub(super) fn segments_in(batch: Duration, rate: u64, all: u64, size: usize) -> usize {
    let in_time = |time: Duration, rate: u64| (rate as f64 * time.as_secs_f64()) as usize / size;
    let most = in_time(BATCH_TIME_SLOW, rate);
    let slow = match rate {
        0 => SEGMENTS_SLOW,
        _ => most.clamp(1, SEGMENTS_SLOW),
    };
    slow.max(in_time(batch, rate.max(all)).min(most))
}

pub(super) fn on_wire<'a>(transmit: &proto::Transmit, packets: &'a [u8]) -> Transmit<'a> {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
        contents: &packets[..transmit.size],
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}
