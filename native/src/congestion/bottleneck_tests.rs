//! Connections that share one bottleneck in reckoned time: a FIFO of limited length that also loses at random.

use std::time::{Duration, Instant};

use quinn_proto::{Dir, StreamId, VarInt};

use super::pacing_tests::{STREAMS, fill, read};
use crate::testing::fixtures;
use crate::testing::simulated_path::{DIALS, IS_DIALLED, Pair};

/// So far one connection may be ahead of another.
const SLICE: Duration = Duration::from_micros(500);

/// A link's rate in bytes a second, its buffer in seconds, and the part of its packets that it loses whatever waits.
struct Bottleneck {
    rate: f64,
    buffer_s: f64,
    loss: f64,
    random: u64,
    free_at: Instant,
}

impl Bottleneck {
    /// Between 0 and 1.
    fn chance(&mut self) -> f64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// How long a datagram waits and is sent; None where it is lost.
    fn pass(&mut self, now: Instant, bytes: usize) -> Option<Duration> {
        let waits_s = self.free_at.saturating_duration_since(now).as_secs_f64();
        // Without a packet or two of others, flows lock in phase (Floyd and Jacobson, 1992).
        let others_s = 4.0 * self.chance() * bytes as f64 / self.rate;
        if waits_s + others_s > self.buffer_s || self.chance() < self.loss {
            return None;
        }
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(bytes as f64 / self.rate);
        Some(self.free_at - now)
    }
}

struct Flow {
    pair: Pair,
    streams: Vec<StreamId>,
    begins: Duration,
}

impl Flow {
    fn new(congestion: &str, rtt: Duration, begins: Duration) -> Self {
        let settings = fixtures::settings(congestion);
        let (dials, is_dialled) = fixtures::crypto();
        let mut pair = Pair::new(&settings, rtt / 2, dials, is_dialled);
        pair.run(pair.now + 10 * rtt, |_, _, _| vec![Duration::ZERO]);
        let window = VarInt::from_u64(settings.window_bytes()).unwrap();
        pair.stack(IS_DIALLED).set_receive_window(window);
        let streams = (0..STREAMS)
            .map(|_| pair.stack(DIALS).streams().open(Dir::Uni).unwrap())
            .collect();
        Self { pair, streams, begins }
    }
}

/// What each flow delivers of the link between `from` and `until`, which are seconds since the first began.
fn shares(flows: &[(&str, f64)], rtt_s: f64, link: (f64, f64, f64), from_s: f64, until_s: f64) -> Vec<f64> {
    let rtt = Duration::from_secs_f64(rtt_s);
    let (megabits, buffer_s, loss) = link;
    let mut flows: Vec<Flow> = flows
        .iter()
        .map(|(name, begins_s)| Flow::new(name, rtt, Duration::from_secs_f64(*begins_s)))
        .collect();
    let began = flows.last().unwrap().pair.now;
    let rate = megabits * 1e6 / 8.0;
    let mut link = Bottleneck {
        rate,
        buffer_s,
        loss,
        random: 7,
        free_at: began,
    };
    let [from, until] = [from_s, until_s].map(|at_s| began + Duration::from_secs_f64(at_s));
    let mut before = vec![0; flows.len()];
    let mut now = began;
    while now < until {
        if now <= from {
            before = flows
                .iter()
                .map(|flow| flow.pair.sides[DIALS].measure.read().delivered)
                .collect();
        }
        now += SLICE;
        let first = (link.chance() * flows.len() as f64) as usize;
        let number = flows.len();
        for at in 0..number {
            let flow = &mut flows[(at + first) % number];
            if now < began + flow.begins {
                continue;
            }
            fill(flow.pair.stack(DIALS), &flow.streams);
            flow.pair.run(now, |from, at, datagram| match from {
                DIALS => link.pass(at, datagram.len()).into_iter().collect(),
                _ => vec![Duration::ZERO],
            });
            read(flow.pair.stack(IS_DIALLED));
        }
    }
    let after = flows.iter().map(|flow| flow.pair.sides[DIALS].measure.read().delivered);
    let seconds = (until - from).as_secs_f64();
    after
        .zip(before)
        .map(|(after, before)| (after - before) as f64 / seconds / rate)
        .collect()
}

#[test]
#[ignore = "a table to look at"]
fn table() {
    let names = std::env::var("LAWS").unwrap_or("cubic auto bbr".into());
    let what = std::env::var("WHAT").unwrap_or("alone".into());
    for name in names.split(' ') {
        if what.contains("alone") {
            for rtt_s in [0.040, 0.005] {
                for loss in [0.0, 0.001, 0.005, 0.01, 0.02, 0.04] {
                    let got = shares(&[(name, 0.0)], rtt_s, (100.0, rtt_s, loss), 3.0, 13.0);
                    println!("{name} {rtt_s} loss {loss}: {:.3}", got[0]);
                }
            }
        }
        if what.contains("start") {
            for loss in [0.0, 0.01] {
                for until in [0.1, 0.2, 0.4, 0.8, 1.6] {
                    let got = shares(&[(name, 0.0)], 0.04, (100.0, 0.04, loss), 0.0, until);
                    println!("{name} loss {loss} in {until} s: {:.2} MB", got[0] * until * 12.5);
                }
            }
        }
        if what.contains("beside") {
            for rtt_s in [0.040, 0.005] {
                for buffer in [0.5, 1.0, 4.0] {
                    for late in [0.0, 5.0] {
                        let flows = [(name, late), ("cubic", 0.0)];
                        let got = shares(&flows, rtt_s, (100.0, buffer * rtt_s, 0.0), 10.0, 50.0);
                        println!(
                            "{name} {rtt_s} buffer {buffer} begins {late}: {:.3} and cubic {:.3}",
                            got[0], got[1]
                        );
                    }
                }
            }
        }
        if what.contains("four") {
            for loss in [0.0, 0.005] {
                let got = shares(
                    &[(name, 0.0), (name, 0.3), (name, 1.0), (name, 3.0)],
                    0.04,
                    (100.0, 0.04, loss),
                    10.0,
                    40.0,
                );
                let sum: f64 = got.iter().sum();
                let jain = sum * sum / 4.0 / got.iter().map(|x| x * x).sum::<f64>();
                println!("{name} four loss {loss}: {got:.3?} sum {sum:.3} jain {jain:.3}");
            }
        }
    }
}
