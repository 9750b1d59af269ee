//! Who gets which message, without a network: with channels that only count.

use std::sync::atomic::Ordering;

use super::*;
use crate::matching::incoming_message::{Next, OVERHEAD_BYTES};
use crate::testing::fixtures::{FakeChannel, SAID_MAX, STREAM_WINDOW_BYTES as WINDOW, header, key};
use crate::wire::Key;

const STORE: u64 = 1 << 20;

struct Bench {
    matcher: Matcher,
    events: Arc<EventQueue>,
    peer: Arc<str>,
}

impl Bench {
    fn new() -> Self {
        let events = Arc::new(EventQueue::default());
        Self {
            matcher: Matcher::new(STORE, events.clone(), Arc::default()),
            events,
            peer: "a".into(),
        }
    }

    fn arrive(&self, path: &Arc<FakeChannel>, tag: u64, length: u64) -> Arc<IncomingMessage> {
        self.matcher.arrived(&self.peer, header(tag, length), &**path)
    }

    fn post(&self, operation: u64, tag: u64) {
        let post = Post {
            operation,
            key: key(tag),
            buffer: None,
        };
        self.matcher.post("a", post);
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

fn path(number: u64) -> Arc<FakeChannel> {
    Arc::new(FakeChannel {
        number,
        ..FakeChannel::default()
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
    bench.matcher.completed(&second);
    bench.post(2, 7);
    bench.matcher.completed(&first);
    assert_eq!(bench.told(), [(2, Some(b"two".to_vec())), (1, Some(b"one".to_vec()))]);
    assert_eq!(bench.matcher.held("a"), 0);
}

#[test]
fn the_store_is_bounded_and_posted_messages_pass() {
    let bench = Bench::new();
    let path = path(1);
    let waiting: Vec<_> = (0..40).map(|tag| bench.arrive(&path, tag, STORE)).collect();
    assert!(waiting.iter().all(|message| message.next() == Next::Wait));
    assert!(path.closed.load(Ordering::SeqCst), "it is told of a full store");
    let raise = path.window_raise.load(Ordering::SeqCst);
    assert!(STORE - WINDOW - OVERHEAD_BYTES < raise && raise <= STORE);
    bench.post(1, 99);
    let posted = bench.arrive(&path, 99, 5);
    assert_eq!(posted.next(), Next::Read);
    assert!(posted.write(b"hello"));
    bench.matcher.completed(&posted);
    assert_eq!(bench.told(), [(1, Some(b"hello".to_vec()))]);
    for tag in 0..40 {
        bench.post(100 + tag, tag);
    }
    assert_eq!(bench.matcher.held("a"), 0);
    assert!(waiting.iter().all(|message| message.next() == Next::Read));
}

#[test]
fn more_than_the_header_says_is_refused() {
    let bench = Bench::new();
    let message = bench.arrive(&path(1), 1, 3);
    assert!(message.write(b"abc") && !message.write(b"d"));
}

#[test]
fn a_withdrawn_post_is_never_written_again() {
    let bench = Bench::new();
    bench.post(1, 1);
    let message = bench.arrive(&path(1), 1, 6);
    assert!(message.write(b"abc"));
    assert!(bench.matcher.cancel(1) && !bench.matcher.cancel(1));
    assert_eq!(message.next(), Next::Stop(Code::Cancelled));
    assert!(message.write(b"def"), "what still comes is thrown away");
    assert_eq!(bench.told(), [(1, None)]);
}

#[test]
fn posts_outlive_a_connection_and_fail_with_the_last() {
    let bench = Bench::new();
    let (old, new) = (path(1), path(2));
    bench.post(1, 1);
    bench.post(2, 2);
    assert!(bench.arrive(&old, 1, 4).write(b"ha"));
    bench.matcher.disconnected("a", 1, None);
    assert!(bench.told().is_empty());
    let again = bench.arrive(&new, 1, 4);
    assert!(again.write(b"half"));
    bench.matcher.completed(&again);
    let failure = Failure::Cancelled("over".to_owned());
    bench.matcher.disconnected("a", 2, Some(failure));
    assert_eq!(bench.told(), [(1, Some(b"half".to_vec())), (2, None)]);
}

#[test]
fn a_terabyte_is_not_allocated_because_somebody_says_so() {
    let bench = Bench::new();
    let message = bench.arrive(&path(1), 1, 1 << 50);
    assert_eq!(message.next(), Next::Wait);
    bench.post(1, 1);
    assert_eq!(message.next(), Next::Stop(Code::BufferTooSmall));
    assert_eq!(bench.told(), [(1, None)]);
}

#[test]
fn messages_with_one_key_are_taken_as_they_were_completed() {
    let bench = Bench::new();
    let path = path(1);
    let waiting: Vec<_> = (0..3).map(|_| bench.arrive(&path, 7, 1)).collect();
    for (at, byte) in [(2, b"c"), (0, b"a"), (1, b"b")] {
        assert!(waiting[at].write(byte));
        bench.matcher.completed(&waiting[at]);
    }
    (1..=3).for_each(|operation| bench.post(operation, 7));
    let expected = [
        (1, Some(b"c".to_vec())),
        (2, Some(b"a".to_vec())),
        (3, Some(b"b".to_vec())),
    ];
    assert_eq!(bench.told(), expected);
}

#[test]
fn what_becomes_free_goes_to_those_that_need_least() {
    let bench = Bench::new();
    let path = path(1);
    let stored = bench.arrive(&path, 1, STORE / 4 - OVERHEAD_BYTES);
    let filled: Vec<_> = (0..13).map(|tag| bench.arrive(&path, 10 + tag, WINDOW)).collect();
    let large = bench.arrive(&path, 2, STORE / 2 - OVERHEAD_BYTES);
    let small = bench.arrive(&path, 3, 10);
    assert!([&large, &small].iter().all(|message| message.next() == Next::Wait));
    for message in &filled {
        bench.matcher.reset(message, "test");
    }
    assert_eq!(
        small.next(),
        Next::Read,
        "a control message never waits for a gradient's place"
    );
    assert_eq!(large.next(), Next::Wait);
    bench.matcher.reset(&small, "test");
    bench.matcher.reset(&stored, "test");
    assert_eq!(large.next(), Next::Read);
}

#[test]
fn a_connection_that_has_ended_brings_nothing_that_a_post_could_wait_for() {
    let bench = Bench::new();
    let path = path(1);
    bench.post(1, 1);
    path.ended.store(true, Ordering::SeqCst);
    bench.matcher.disconnected("a", 1, None);
    assert_eq!(bench.arrive(&path, 1, 5).next(), Next::Stop(Code::Cancelled));
    let again = bench.arrive(&self::path(2), 1, 2);
    assert!(again.write(b"ok"));
    bench.matcher.completed(&again);
    assert_eq!(bench.told(), [(1, Some(b"ok".to_vec()))]);
}

#[test]
fn a_matcher_that_is_cleared_keeps_nothing_and_takes_no_post() {
    let bench = Bench::new();
    let path = path(1);
    let waiting = [(1, true), (2, false)].map(|(tag, whole)| {
        let message = bench.arrive(&path, tag, 2);
        assert!(message.write(b"ok"));
        if whole {
            bench.matcher.completed(&message);
        }
        Arc::downgrade(&message)
    });
    bench.matcher.fail_all(&Failure::Cancelled("over".to_owned()));
    assert!(waiting.iter().all(|message| message.upgrade().is_some()));
    bench.matcher.clear();
    assert!(waiting.iter().all(|message| message.upgrade().is_none()));
    assert_eq!(bench.matcher.held("a"), 0);
    bench.post(1, 1);
    assert_eq!(bench.told(), [(1, None)]);
}

#[test]
fn many_ranks_of_one_name_share_a_few_stores() {
    let bench = Bench::new();
    for rank in 0..64 {
        let path = Arc::new(FakeChannel {
            number: rank,
            account: rank.to_string(),
            ..FakeChannel::default()
        });
        for tag in 0..100 {
            bench.arrive(&path, tag, WINDOW - OVERHEAD_BYTES);
            if path.closed.load(Ordering::SeqCst) {
                break; // a full store lets no more in
            }
        }
    }
    // 4 whole ones, then 4/5, 4/6, ... of one: 4 (1 + ln 16), and each may be exceeded by what it was just let in.
    let held = bench.matcher.held("a");
    assert!(held < 16 * STORE + 64 * WINDOW, "{} stores", held / STORE);
    assert!(held > 4 * STORE);
}

/// What was said since: from which step on a group waits, or goes on.
fn said(path: &FakeChannel) -> Vec<(u64, bool)> {
    path.heard().iter().map(|hold| (hold.step, hold.waits)).collect()
}

impl Bench {
    /// A part of an operation arrives that is a sixteenth of the store.
    fn part(&self, path: &Arc<FakeChannel>, step: u64, part: u64) -> Arc<IncomingMessage> {
        let key = Bench::part_key(step, part);
        let header = Header {
            key,
            ..header(0, WINDOW - OVERHEAD_BYTES)
        };
        self.matcher.arrived(&self.peer, header, &**path)
    }

    fn part_key(step: u64, part: u64) -> Key {
        let (kind, group) = (KIND_COLLECTIVE, "g".to_owned());
        Key {
            kind,
            group,
            step,
            bucket: part,
            ..key(0)
        }
    }

    fn post_part(&self, step: u64, part: u64) {
        let (operation, key) = (step * 100 + part, Bench::part_key(step, part));
        self.matcher.post(
            "a",
            Post {
                operation,
                key,
                buffer: None,
            },
        );
    }
}

#[test]
fn an_operation_that_comes_when_half_of_the_store_is_taken_is_held_back_until_it_begins() {
    let bench = Bench::new();
    let path = path(1);
    for part in 0..8 {
        bench.part(&path, 5, part);
    }
    assert_eq!(said(&path), []);
    bench.part(&path, 5, 8);
    bench.part(&path, 5, 9);
    bench.part(&path, 6, 0);
    bench.part(&path, 7, 0);
    bench.arrive(&path, 1, 5); // of no collective
    assert_eq!(said(&path), [(5, true), (6, true), (7, true)]);
    bench.post_part(5, 0);
    bench.post_part(5, 1);
    assert_eq!(said(&path), [(5, false)]);
    bench.part(&path, 5, 10);
    assert_eq!(said(&path), [], "it has begun");
    bench.matcher.expect("g", 6, Vec::new());
    assert_eq!(said(&path), [(6, false)]);
    bench.matcher.discard("g", 8);
    assert_eq!(said(&path), [(7, false)]);
    for part in 0..9 {
        bench.part(&path, 9, part);
    }
    bench.matcher.discard("g", 0); // another group may have its name
    assert_eq!(said(&path), [(9, true), (9, false)]);
}

#[test]
fn what_is_left_of_an_operation_holds_no_later_one_back() {
    let bench = Bench::new();
    let path = path(1);
    for part in 0..9 {
        bench.part(&path, 5, part);
    }
    assert_eq!(said(&path), [(5, true)]);
    bench.post_part(6, 0); // 5 has failed here
    assert_eq!(said(&path), [(5, false)]);
    bench.part(&path, 5, 9);
    bench.part(&path, 4, 0);
    assert_eq!(said(&path), []);
}

#[test]
fn a_hold_is_said_over_each_connection_and_there_are_no_more_than_there_is_room_for() {
    let bench = Bench::new();
    let (first, second) = (path(1), path(2));
    for step in 0..20 {
        bench.part(&first, step, 0);
    }
    assert_eq!(said(&first).len(), SAID_MAX / 2, "each keeps room for its end");
    bench.part(&second, 8, 1);
    assert_eq!(said(&second), [(8, true)]);
    first.close();
    bench.matcher.disconnected("a", 1, None);
    bench.post_part(9, 0);
    assert_eq!(said(&second), [(8, false)]);
}
