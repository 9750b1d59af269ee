//! Collectives from their start to their end, in an engine without a network: messages come over channels that only count,
//! and connections are numbers behind which there is none.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use super::*;
use crate::borrowed_buffers::Borrowed;
use crate::collective::kernels::{Dtype, Kernel, ReduceOp};
use crate::collective::run::{Call, Peer};
use crate::collective::schedule::tests::{Row, SCRATCH, encoded};
use crate::collective::unacknowledged::{COPIED_BYTES_MAX, KEPT_BYTES_MAX};
use crate::matching::incoming_message::Next;
use crate::matching::matcher::COLLECTIVE_LATE;
use crate::runtime::thread::Thread;
use crate::session::tick;
use crate::testing::fixtures::{FakeChannel, settings};

const PATIENCE: Duration = Duration::from_secs(20);
const NOBODY: u64 = 1 << 40;
/// Receive what rank 1 has, add it to ours, and copy the sum.
const ROWS: [Row; 3] = [
    (2, 0, 1, 0, &[(SCRATCH, 0, 8)], &[]),
    (3, 1, 0, 0, &[(0, 0, 8), (0, 0, 8), (SCRATCH, 0, 8)], &[0]),
    (4, 0, 0, 0, &[(0, 8, 16), (0, 0, 8)], &[1]),
];
const SEND: Row = (1, 0, 1, 0, &[(0, 0, 8)], &[]);
const LARGE: u64 = COPIED_BYTES_MAX as u64 + 8;
const SEND_LARGE: Row = (1, 0, 1, 0, &[(0, 0, LARGE)], &[]);

struct Scene {
    engine: Arc<Engine>,
    thread: Thread,
    collectives: Collectives,
    lent: Py<PyByteArray>,
    seen: Vec<Event>,
}

fn values(of: [u64; 2]) -> Vec<u8> {
    of.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Scene {
    fn new() -> Self {
        Python::initialize();
        let (engine, thread) = Engine::start(settings("cubic"), Arc::default()).unwrap();
        tick::begin(&engine);
        Self {
            collectives: begin(&engine),
            engine,
            thread,
            lent: Python::attach(|py| PyByteArray::new(py, &values([5, 0])).unbind()),
            seen: Vec::new(),
        }
    }

    /// Lend so many bytes from now on.
    fn resize(&self, bytes: u64) {
        Python::attach(|py| self.lent.bind(py).resize(usize::try_from(bytes).unwrap())).expect("it is lent no more");
    }

    fn start(&self, rows: &[Row]) {
        self.start_as(7, 4, rows);
    }

    fn start_as(&self, number: u64, level: usize, rows: &[Row]) {
        self.start_without(0..0, number, level, rows);
    }

    /// `missing`: bytes of what is lent that are not there yet.
    fn start_without(&self, missing: Range<usize>, number: u64, level: usize, rows: &[Row]) {
        let first = self.first_address();
        let peer = |rank: u32| Peer {
            rank,
            name: format!("rank-{rank}"),
            says: "a sum".to_owned(),
            hears: "a sum".to_owned(),
        };
        let call = Call {
            number,
            job: String::new(),
            group: "g".to_owned(),
            step: 3,
            operation: 1,
            dtype: "uint64".to_owned(),
            item_bytes: 8,
            kernel: Kernel::of(Dtype::U64, ReduceOp::Sum),
            peers: vec![peer(0), peer(1)],
            rank: 0,
            level,
            bulk: false,
            order: 0,
            missing: first + missing.start..first + missing.end,
        };
        let events = self.engine.context.events.clone();
        let buffer = Python::attach(|py| PyBuffer::get(self.lent.bind(py))).unwrap();
        let buffers = vec![(Borrowed::new(buffer, events.clone()), true)];
        let run = Run::new(call, &encoded(rows, 16), buffers, events).unwrap();
        assert!(self.collectives.start(run));
    }

    /// A message of rank 1 comes, which calls the operation so.
    fn arrive(&self, call: &str, dtype: &str) {
        let header = Header {
            dtype: dtype.to_owned(),
            call: call.to_owned(),
            key: crate::wire::Key {
                kind: crate::wire::KIND_COLLECTIVE,
                group: "g".to_owned(),
                step: 3,
                bucket: 1 << 32,
                tag: 1,
            },
            ..crate::testing::fixtures::header(1, 8)
        };
        let message = self
            .engine
            .context
            .matcher
            .arrived(&"rank-1".into(), header, &FakeChannel::default());
        assert!(message.next() == Next::Read && message.write(&9u64.to_le_bytes()));
        self.engine.context.matcher.completed(&message);
    }

    /// Wait until it waits for rank 1.
    fn waits(&self) {
        while self.collectives.progress(7) != Some((0, vec![1])) {
            thread::yield_now();
        }
    }

    /// Wait until something was told.
    fn until(&mut self, told: impl Fn(&Event) -> bool) {
        let since = Instant::now();
        while !self.seen.iter().any(&told) {
            assert!(since.elapsed() < PATIENCE, "it was not told");
            thread::sleep(Duration::from_millis(1));
            self.seen.extend(self.engine.context.events.drain());
        }
    }

    /// Wait until whatever waits for its collective has been announced.
    fn until_late(&mut self) {
        thread::sleep(COLLECTIVE_LATE * 3);
        self.seen.extend(self.engine.context.events.drain());
    }

    /// The collective ends, once, and lends nothing any more; whether it is complete, and its payload bytes.
    fn end(&mut self) -> (bool, u64) {
        self.until(|event| matches!(event, Event::CollectiveEnded { .. }));
        let ends = self.seen.drain(..).filter_map(|event| match event {
            Event::CollectiveEnded {
                collective: 7,
                complete,
                bytes_done,
            } => Some((complete, bytes_done)),
            _ => None,
        });
        let ends: Vec<(bool, u64)> = ends.collect(); // which lets go of what was lent
        assert_eq!(ends.len(), 1);
        self.resize(16);
        assert_eq!(self.collectives.progress(7), None);
        ends[0]
    }

    fn first_address(&self) -> usize {
        Python::attach(|py| PyBuffer::<u8>::get(self.lent.bind(py)).unwrap().buf_ptr() as usize)
    }

    fn content(&self) -> Vec<u8> {
        Python::attach(|py| self.lent.bind(py).to_vec())
    }
}

#[test]
fn every_step_is_carried_out_and_nothing_is_told_but_the_end() {
    for early in [false, true] {
        let mut scene = Scene::new();
        if early {
            scene.arrive("a sum", "uint64");
        }
        scene.start(&ROWS);
        if !early {
            scene.waits();
            scene.arrive("a sum", "uint64");
        }
        scene.until(|event| matches!(event, Event::CollectiveEnded { .. }));
        scene.until_late();
        let others = scene.seen.iter().filter(|event| !matches!(event, Event::Release(_)));
        assert_eq!(others.count(), 1);
        assert_eq!(scene.end(), (true, 8));
        assert_eq!(scene.content(), values([14, 14]));
    }
}

#[test]
fn what_is_to_be_computed_for_an_urgent_collective_goes_before_what_was_there_earlier() {
    let mut scene = Scene::new();
    let copy: Row = (4, 0, 0, 0, &[(0, 8, 16), (0, 0, 8)], &[]);
    let (go_on, held_up) = std::sync::mpsc::channel::<()>();
    let (is_held_up, begins) = std::sync::mpsc::channel::<()>();
    scene.engine.spawn(async move {
        is_held_up.send(()).unwrap();
        held_up.recv().unwrap(); // until both have been asked for
    });
    begins.recv().unwrap();
    scene.start_as(7, 4, &[copy]);
    scene.start_as(8, 2, &[copy]);
    go_on.send(()).unwrap();
    scene.until(|event| matches!(event, Event::CollectiveEnded { collective: 7, .. }));
    let ended = scene.seen.iter().filter_map(|event| match event {
        Event::CollectiveEnded { collective, .. } => Some(*collective),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<u64>>(), [8, 7]);
}

#[test]
fn a_message_that_comes_before_its_step_begins_is_not_announced_unless_it_is_of_another_call() {
    let waits: Row = (2, 0, 1, 0, &[(SCRATCH, 0, 8)], &[0]);
    for (call, announced) in [("a sum", 0), ("", 0), ("a product", 1)] {
        let mut scene = Scene::new();
        scene.start(&[SEND, waits]);
        scene.waits();
        scene.arrive(call, "uint64");
        scene.until_late();
        scene.collectives.stop(7);
        scene.until(|event| matches!(event, Event::CollectiveEnded { .. }));
        let told = scene
            .seen
            .iter()
            .filter(|event| matches!(event, Event::Announced { .. }));
        assert_eq!(told.count(), announced, "{call:?}");
    }
}

#[test]
fn a_message_of_another_call_or_type_is_told_and_not_taken_for_the_step() {
    for (call, dtype) in [("a product", "uint64"), ("a sum", "int64")] {
        let mut scene = Scene::new();
        scene.start(&ROWS);
        scene.arrive(call, dtype);
        scene.until(|event| {
            matches!(event, Event::StepFailed { collective: 7, peer: 1, bytes: 8, failure: None, header: Some(header) }
                if header.call == call && header.dtype == dtype)
        });
        assert_eq!(
            scene.collectives.progress(7),
            Some((0, Vec::new())),
            "it goes on until it is stopped"
        );
        scene.collectives.stop(7);
        assert_eq!(scene.end(), (false, 0));
    }
}

#[test]
fn one_that_is_stopped_ends_when_nothing_waits_for_the_network() {
    let mut scene = Scene::new();
    scene.start(&[ROWS[0], SEND]);
    scene.collectives.stop(7);
    assert_eq!(scene.end(), (false, 0));
    scene.collectives.stop(7); // a second time is nothing
    scene.arrive("a sum", "uint64");
    scene.until(|event| matches!(event, Event::Announced { .. }));
    assert_eq!(scene.content(), values([5, 0]), "written to after its end");
}

#[test]
fn a_lost_connection_fails_nothing_and_the_next_one_is_used() {
    let mut scene = Scene::new();
    scene.resize(LARGE);
    scene.start(&[SEND_LARGE]);
    for connection in [NOBODY, NOBODY + 1] {
        scene.collectives.route(1, false, vec![connection]); // which has ended, as the engine says
        thread::sleep(Duration::from_millis(20));
        assert_eq!(scene.collectives.progress(7), Some((0, vec![1])));
    }
    scene.collectives.gone(1);
    scene.until(|event| {
        matches!(
            event,
            Event::StepFailed {
                peer: 1,
                failure: Some(Failure::Lost { .. }),
                header: None,
                ..
            }
        )
    });
    scene.collectives.stop(7);
    assert_eq!(scene.end(), (false, 0));
}

#[test]
fn what_is_small_ends_with_a_copy_that_is_kept_until_the_peer_has_it() {
    let mut scene = Scene::new();
    assert!(scene.collectives.drain(PATIENCE), "nothing was sent");
    scene.start_as(7, 4, &[SEND]);
    scene.waits(); // there is no connection to hand it over to
    scene.collectives.route(1, false, vec![NOBODY]); // which has ended, as the engine says
    assert_eq!(scene.end(), (true, 8));
    scene.collectives.route(1, false, vec![NOBODY + 1]);
    assert!(!scene.collectives.drain(Duration::from_millis(20)));
    scene.collectives.gone(1);
    assert!(scene.collectives.drain(PATIENCE));
}

#[test]
fn a_large_message_waits_for_its_acknowledgement() {
    let mut scene = Scene::new();
    scene.resize(LARGE);
    scene.start(&[SEND_LARGE]);
    scene.collectives.route(1, false, vec![NOBODY]);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(scene.collectives.progress(7), Some((0, vec![1])));
    assert!(scene.collectives.drain(PATIENCE), "nothing counts as sent");
    scene.collectives.stop(7);
    assert_eq!(scene.end(), (false, 0));
}

#[test]
fn of_what_is_not_acknowledged_only_so_much_counts_as_sent() {
    const WHOLE: Row = (1, 0, 1, 0, &[(0, 0, COPIED_BYTES_MAX as u64)], &[]);
    let mut scene = Scene::new();
    scene.resize(COPIED_BYTES_MAX as u64);
    for number in 8..8 + (KEPT_BYTES_MAX / COPIED_BYTES_MAX) as u64 {
        scene.start_as(number, 4, &[WHOLE]);
        scene.collectives.route(1, false, vec![NOBODY + number]);
        scene.until(
            |event| matches!(event, Event::CollectiveEnded { collective, complete: true, .. } if *collective == number),
        );
    }
    scene.seen.clear();
    scene.start(&[WHOLE]);
    scene.collectives.route(1, false, vec![NOBODY]);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(scene.collectives.progress(7), Some((0, vec![1])));
    scene.collectives.gone(1);
    assert!(scene.collectives.drain(PATIENCE));
    scene.collectives.stop(7);
    assert_eq!(scene.end(), (false, 0));
}

#[test]
fn from_a_rank_that_is_gone_only_what_had_come_is_received() {
    let mut scene = Scene::new();
    scene.arrive("a sum", "uint64");
    scene.collectives.gone(1);
    scene.start(&ROWS);
    assert_eq!(scene.end(), (true, 8));
    scene.start(&ROWS);
    scene.until(|event| {
        matches!(
            event,
            Event::StepFailed {
                peer: 1,
                failure: Some(Failure::Cancelled(_)),
                ..
            }
        )
    });
    scene.collectives.stop(7);
    assert_eq!(scene.end(), (false, 0));
}

#[test]
fn what_runs_when_the_engine_closes_ends_and_what_comes_later_is_refused() {
    let mut scene = Scene::new();
    scene.start(&ROWS);
    scene.waits();
    let other = Engine::start(settings("cubic"), Arc::default()).unwrap().1;
    std::mem::replace(&mut scene.thread, other).end().join().unwrap();
    scene.engine.let_go();
    assert_eq!(scene.end(), (false, 0));
    let run = Run::new(
        Call {
            number: 8,
            job: String::new(),
            group: String::new(),
            step: 0,
            operation: 9,
            dtype: String::new(),
            item_bytes: 1,
            kernel: None,
            peers: Vec::new(),
            rank: 0,
            level: 4,
            bulk: false,
            order: 0,
            missing: 0..0,
        },
        &encoded(&[], 0),
        Vec::new(),
        scene.engine.context.events.clone(),
    );
    assert!(!scene.collectives.start(run.unwrap()));
    assert!(
        scene.engine.context.events.drain().is_empty(),
        "it was refused, so it has no end"
    );
}

#[test]
fn a_step_that_touches_what_is_missing_waits_for_it_and_others_do_not() {
    let copies: [Row; 3] = [
        (4, 0, 0, 0, &[(SCRATCH, 0, 8), (0, 8, 16)], &[]),
        (4, 0, 0, 0, &[(0, 0, 8), (SCRATCH, 8, 16)], &[]),
        (4, 0, 0, 0, &[(0, 0, 8), (SCRATCH, 0, 8)], &[0, 1]),
    ];
    let mut scene = Scene::new();
    scene.start_without(8..16, 7, 4, &copies);
    let first = scene.first_address();
    scene.collectives.read_on(7, first + 12); // of the second value half is missing
    while scene.content() != values([0, 0]) {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(20));
    Python::attach(|py| {
        let lent = PyBuffer::<u8>::get(scene.lent.bind(py)).unwrap();
        lent.copy_from_slice(py, &values([0, 9])).unwrap();
    });
    scene.collectives.read_on(7, first + 16);
    assert_eq!(scene.end(), (true, 0));
    assert_eq!(scene.content(), values([9, 9]));
}

#[test]
fn one_whose_input_never_comes_ends_when_it_is_stopped() {
    let mut scene = Scene::new();
    scene.start_without(0..16, 7, 4, &[SEND]);
    scene.collectives.route(1, false, vec![NOBODY]);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(
        scene.collectives.progress(7),
        Some((0, Vec::new())),
        "it waits for nobody else"
    );
    scene.collectives.stop(7);
    assert_eq!(scene.end(), (false, 0));
    scene.collectives.read_on(7, 0); // of one that has ended it is nothing
}

#[test]
fn a_message_that_is_sent_again_and_refused_as_over_had_been_taken() {
    let operation = |fresh: Option<bool>| Operation {
        collective: 7,
        step: 0,
        sent: fresh.map(|fresh| Sent {
            way: (1, false),
            sending: Sending {
                level: 4,
                fresh,
                order: 0,
                step: 0,
                collective: 7,
                bytes: 8,
            },
            connection: NOBODY,
            at: Instant::now(),
            counts: true,
        }),
    };
    let over = Failure::Discarded(String::new());
    assert!(operation(Some(false)).was_taken(&over));
    assert!(!operation(Some(true)).was_taken(&over), "it is new to the peer");
    assert!(!operation(None).was_taken(&over), "nothing was sent");
    assert!(!operation(Some(false)).was_taken(&Failure::Cancelled(String::new())));
}

#[test]
fn what_a_rank_asked_to_have_held_back_waits_until_it_may_go_on_or_its_connection_ends() {
    for ends in [false, true] {
        let mut scene = Scene::new();
        let events = scene.engine.context.events.clone();
        let say = |connection, step, waits| {
            let group = "g".to_owned();
            events.push_hold(connection, Hold { group, step, waits });
        };
        scene.collectives.route(1, false, vec![NOBODY]);
        for step in 0..2000 {
            say(NOBODY + 1, step, true); // which leads to no rank
        }
        say(NOBODY, 4, true);
        say(NOBODY, 1, true);
        scene.start(&[SEND]); // of step 3
        thread::sleep(Duration::from_millis(20));
        assert_eq!(scene.collectives.progress(7), Some((0, vec![1])));
        if ends {
            scene.collectives.route(1, false, vec![NOBODY + 2]);
        } else {
            say(NOBODY, 1, false);
        }
        assert_eq!(scene.end(), (true, 8));
    }
}
