//! A large window leaves spread over the round trip, whichever controller made it, and not in one burst.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{Connection, Dir, StreamId, VarInt};

use crate::testing::fixtures;
use crate::testing::simulated_path::{DIALS, IS_DIALLED, Pair};

const DELAY: Duration = Duration::from_millis(20);
const ROUND: Duration = Duration::from_millis(40);
/// The stack's pacer lets at most so much time's worth go at once.
const SPAN: Duration = Duration::from_millis(2);
const SLICE: Duration = Duration::from_millis(1);
/// Far above the ten packets that the stack's pacer never holds back.
const LARGE_BYTES: u64 = 1 << 19;
/// What leaves within `SPAN`: a burst of 1/20 of the window, and what comes to 1.25 windows a round trip, 1/16.
const PART_MAX: f64 = 0.15;
pub(super) const STREAMS: usize = 16;
static CONTENT: [u8; 1 << 16] = [7; 1 << 16];

/// When so many bytes left, and how large the window was.
type Sent = (Instant, u64, u64);

struct Run {
    pair: Pair,
    streams: Vec<StreamId>,
    sent: RefCell<Vec<Sent>>,
    /// Of the datagrams with payload that are sent next.
    lost: Cell<u32>,
}

impl Run {
    fn new(congestion: &str) -> Self {
        let settings = fixtures::settings(congestion);
        let (dials, is_dialled) = fixtures::crypto();
        let mut pair = Pair::new(&settings, DELAY, dials, is_dialled);
        pair.run(pair.now + 10 * ROUND, |_, _, _| vec![Duration::ZERO]);
        // As for a peer whose hello is good.
        let window = VarInt::from_u64(settings.window_bytes()).unwrap();
        pair.stack(IS_DIALLED).set_receive_window(window);
        let streams = (0..STREAMS).map(|_| pair.stack(DIALS).streams().open(Dir::Uni).unwrap());
        Self {
            streams: streams.collect(),
            pair,
            sent: RefCell::default(),
            lost: Cell::default(),
        }
    }

    fn window(&self) -> u64 {
        self.pair.sides[DIALS].measure.read().window
    }

    /// Let both sides work, one of which `writes` as much as the other takes, while the other reads.
    fn work(&mut self, time: Duration, writes: bool) {
        let until = self.pair.now + time;
        while self.pair.now < until {
            if writes {
                fill(self.pair.stack(DIALS), &self.streams);
            }
            let (sent, lost, measure) = (&self.sent, &self.lost, self.pair.sides[DIALS].measure.clone());
            self.pair.run(self.pair.now + SLICE, |from, now, datagram| {
                if from == DIALS {
                    let left = (now, datagram.len() as u64, measure.read().window);
                    sent.borrow_mut().push(left);
                    if lost.get() > 0 && datagram.len() > 1000 {
                        lost.set(lost.get() - 1);
                        return vec![];
                    }
                }
                vec![Duration::ZERO]
            });
            read(self.pair.stack(IS_DIALLED));
        }
    }
}

pub(super) fn fill(stack: &mut Connection, streams: &[StreamId]) {
    for id in streams {
        while let Ok(taken) = stack.send_stream(*id).write_chunks(&mut [Bytes::from_static(&CONTENT)]) {
            assert!(taken.bytes > 0);
        }
    }
}

pub(super) fn read(stack: &mut Connection) {
    while stack.streams().accept(Dir::Uni).is_some() {}
    for number in 0..STREAMS as u64 {
        let id = StreamId::new(quinn_proto::Side::Client, Dir::Uni, number);
        let mut stream = stack.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else {
            continue; // nothing has come
        };
        while let Ok(Some(_)) = chunks.next(usize::MAX) {}
        let _ = chunks.finalize();
    }
}

/// The largest part of the window that left within one `SPAN`.
fn largest_part(sent: &[Sent]) -> f64 {
    let parts = sent.iter().enumerate().map(|(at, (since, _, window))| {
        let span = sent[at..].iter().take_while(|(when, ..)| *when - *since < SPAN);
        span.map(|(_, bytes, _)| bytes).sum::<u64>() as f64 / *window as f64
    });
    parts.fold(0.0, f64::max)
}

fn bytes_of(sent: &[Sent]) -> u64 {
    sent.iter().map(|(_, bytes, _)| bytes).sum()
}

#[test]
#[ignore = "ten seconds: make test-long"]
fn a_large_window_leaves_spread_over_the_round_trip() {
    for name in ["auto", "cubic", "bbr"] {
        let mut run = Run::new(name);
        for _ in 0..40 {
            if run.window() < LARGE_BYTES {
                run.work(ROUND, true);
            }
        }
        // A loss ends the slow start of those that begin with one.
        run.lost.set(1);
        run.work(4 * ROUND, true);
        assert!(run.window() >= LARGE_BYTES, "{name}: {} bytes", run.window());
        // While acknowledgements come.
        run.sent.take();
        let window = run.window();
        run.work(2 * ROUND, true);
        let sent = run.sent.take();
        let part = largest_part(&sent);
        assert!(part < PART_MAX, "{name}: {part} of the window within {SPAN:?}");
        assert!(bytes_of(&sent) > window, "{name}: {} of {window}", bytes_of(&sent));
        // Where none come, for all of the window is free.
        run.work(20 * ROUND, false);
        let window = run.window();
        run.sent.take();
        run.work(ROUND, true);
        let sent = run.sent.take();
        let part = largest_part(&sent);
        assert!(part < PART_MAX, "{name}: {part} of the window within {SPAN:?}");
        let bytes = bytes_of(&sent);
        assert!(bytes > window / 2, "{name}: {bytes} bytes of a window of {window}");
    }
}
