//! Who gets which message, without a network: a channel that only counts.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::*;

const STORE: u64 = 1 << 20;
const WINDOW: u64 = 1 << 16;

#[derive(Default)]
struct Path {
    number: u64,
    widened: AtomicI64,
    closed: AtomicBool,
    ended: AtomicBool,
}

impl Channel for Path {
    fn id(&self) -> u64 {
        self.number
    }

    fn account(&self) -> String {
        String::new()
    }

    fn stream_window(&self) -> u64 {
        WINDOW
    }

    fn widen(&self, bytes: i64) {
        self.widened.fetch_add(bytes, Ordering::SeqCst);
    }

    fn close_doors(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

struct Bench {
    mail: Mail,
    events: Arc<EventQueue>,
    peer: Arc<str>,
}

impl Bench {
    fn new() -> Self {
        let events = Arc::new(EventQueue::default());
        Self {
            mail: Mail::new(STORE, events.clone()),
            events,
            peer: "a".into(),
        }
    }

    fn arrive(&self, path: &Arc<Path>, tag: u64, length: u64) -> Arc<Slot> {
        let header = Header {
            key: key(tag),
            job: String::new(),
            dtype: String::new(),
            shape: Vec::new(),
            length,
            weight: 1.0,
            contributors: Vec::new(),
            call: String::new(),
        };
        self.mail.arrived(&self.peer, header, path.clone())
    }

    fn post(&self, operation: u64, tag: u64) {
        let post = Post {
            operation,
            key: key(tag),
            buffer: None,
        };
        self.mail.post("a", post);
    }

    /// What was told since: operation and payload of received messages, and operations that failed.
    fn told(&self) -> Vec<(u64, Option<Vec<u8>>)> {
        let events = self.events.drain();
        events
            .into_iter()
            .filter_map(|event| match event {
                Event::Received {
                    operation,
                    payload: Arrived::Own(bytes),
                    ..
                } => Some((operation, Some(bytes))),
                Event::Failed { operation, .. } => Some((operation, None)),
                _ => None,
            })
            .collect()
    }
}

fn key(tag: u64) -> Key {
    Key {
        kind: 2,
        group: String::new(),
        step: 0,
        bucket: 0,
        attempt: 0,
        epoch: 0,
        tag,
    }
}

fn path(number: u64) -> Arc<Path> {
    Arc::new(Path {
        number,
        ..Path::default()
    })
}

#[test]
fn posts_take_messages_in_order_whichever_comes_first() {
    let bench = Bench::new();
    let path = path(1);
    bench.post(1, 7);
    let first = bench.arrive(&path, 7, 3);
    let second = bench.arrive(&path, 7, 3);
    assert!(second.write(b"two") && first.write(b"one"));
    bench.mail.completed(&second);
    bench.post(2, 7);
    bench.mail.completed(&first);
    assert_eq!(bench.told(), [(2, Some(b"two".to_vec())), (1, Some(b"one".to_vec()))]);
    assert_eq!(bench.mail.held("a"), 0);
}

#[test]
fn the_store_is_bounded_and_posted_messages_pass() {
    let bench = Bench::new();
    let path = path(1);
    let waiting: Vec<_> = (0..40).map(|tag| bench.arrive(&path, tag, STORE)).collect();
    assert!(waiting.iter().all(|slot| slot.next() == Next::Wait));
    assert!(
        path.closed.load(Ordering::SeqCst),
        "a full store lets no more streams in"
    );
    assert!(path.widened.load(Ordering::SeqCst) <= STORE as i64);
    bench.post(1, 99);
    let posted = bench.arrive(&path, 99, 5);
    assert_eq!(posted.next(), Next::Read);
    assert!(posted.write(b"hello"));
    bench.mail.completed(&posted);
    assert_eq!(bench.told(), [(1, Some(b"hello".to_vec()))]);
    for tag in 0..40 {
        bench.post(100 + tag, tag);
    }
    assert_eq!(bench.mail.held("a"), 0);
    assert!(waiting.iter().all(|slot| slot.next() == Next::Read));
    bench.mail.disconnected("a", 1, None);
    assert_eq!(
        path.widened.load(Ordering::SeqCst),
        0,
        "nothing of the window is left over"
    );
}

#[test]
fn more_than_the_header_says_is_refused() {
    let bench = Bench::new();
    let slot = bench.arrive(&path(1), 1, 3);
    assert!(slot.write(b"abc") && !slot.write(b"d"));
}

#[test]
fn a_withdrawn_post_is_never_written_again() {
    let bench = Bench::new();
    bench.post(1, 1);
    let slot = bench.arrive(&path(1), 1, 6);
    assert!(slot.write(b"abc"));
    assert!(bench.mail.cancel(1) && !bench.mail.cancel(1));
    assert_eq!(slot.next(), Next::Stop(Code::Cancelled));
    assert!(slot.write(b"def"), "what still comes is thrown away");
    assert_eq!(bench.told(), [(1, None)]);
}

#[test]
fn posts_outlive_a_connection_and_fail_with_the_last() {
    let bench = Bench::new();
    let (old, new) = (path(1), path(2));
    bench.post(1, 1);
    bench.post(2, 2);
    assert!(bench.arrive(&old, 1, 4).write(b"ha"));
    bench.mail.disconnected("a", 1, None);
    assert!(bench.told().is_empty());
    let again = bench.arrive(&new, 1, 4);
    assert!(again.write(b"half"));
    bench.mail.completed(&again);
    let failure = Failure::Cancelled("over".to_owned());
    bench.mail.disconnected("a", 2, Some(failure));
    assert_eq!(bench.told(), [(1, Some(b"half".to_vec())), (2, None)]);
}

#[test]
fn a_terabyte_is_not_allocated_because_somebody_says_so() {
    let bench = Bench::new();
    let slot = bench.arrive(&path(1), 1, 1 << 50);
    assert_eq!(slot.next(), Next::Wait);
    bench.post(1, 1);
    assert_eq!(slot.next(), Next::Stop(Code::BufferTooSmall));
    assert_eq!(bench.told(), [(1, None)]);
}
