//! Messages, posts and connections in any order, over memory that Python lends.
//!
//! Every post ends once; what is received is what was sent; what the store holds is bounded; a buffer that was given
//! back is never written again; and when everything has ended nothing is left over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods};

use crate::borrowed_buffers::Posted;
use crate::events::{Arrived, Event, EventQueue, Failure};
use crate::matching::incoming_message::{IncomingMessage, Next};
use crate::matching::matcher::Matcher;
use crate::matching::queues::Post;
use crate::testing::fixtures::{FakeChannel, STREAM_WINDOW_BYTES as WINDOW};
use crate::wire::{Header, Key};

const STORE: u64 = 1 << 20;
const FIRST_BYTES_MAX: usize = 4096;
const STEPS_MAX: usize = 200;

/// What messages are made of: each is a part of this.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..STORE + 256)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
});

#[derive(Arbitrary, Debug)]
pub enum Length {
    Small(u8),
    Window(i8),
    Large(u8),
    Terabyte,
}

impl Length {
    fn bytes(&self) -> u64 {
        match self {
            Self::Small(bytes) => u64::from(*bytes),
            Self::Window(off) => WINDOW.wrapping_add_signed(i64::from(*off)),
            Self::Large(part) => STORE / 256 * (u64::from(*part) + 1),
            Self::Terabyte => 1 << 40,
        }
    }
}

#[derive(Arbitrary, Debug)]
pub enum Step {
    Arrive {
        path: u8,
        key: u8,
        length: Length,
        first: u16,
    },
    Feed {
        message: u8,
        bytes: u16,
    },
    Whole {
        message: u8,
    },
    Reset {
        message: u8,
    },
    Post {
        key: u8,
        buffer: Option<Length>,
    },
    Cancel {
        post: u8,
    },
    Discard {
        before_step: u8,
    },
    /// `late`: its readers notice after the matcher has been told.
    Down {
        path: u8,
        late: bool,
    },
}

/// One stream and what its reader has read.
struct Stream {
    message: Arc<IncomingMessage>,
    path: usize,
    number: usize,
    at: u64,
    open: bool,
}

impl Stream {
    fn part(&self, count: usize) -> &'static [u8] {
        let left = (self.message.header.length - self.at).min(count as u64) as usize;
        // A terabyte is never sent: what there is of it begins again.
        let from = self.number % 256 + self.at as usize % STORE as usize;
        &NOISE[from..(from + left).min(NOISE.len())]
    }

    /// As the reader of a stream does. Whether it goes on.
    fn feed(&mut self, count: usize) {
        match self.message.next() {
            Next::Stop(_) => self.open = false,
            Next::Wait => {}
            Next::Read => {
                let part = self.part(count);
                assert!(self.message.write(part));
                self.at += part.len() as u64;
            }
        }
    }
}

struct Lent<'py> {
    buffer: Option<Bound<'py, PyByteArray>>,
    /// As it was when it was given back in a failure.
    left: Option<Vec<u8>>,
}

struct World<'py> {
    py: Python<'py>,
    matcher: Matcher,
    events: Arc<EventQueue>,
    paths: Vec<Arc<FakeChannel>>,
    /// What was held back over each path.
    held: [HashSet<(String, u64)>; 4],
    streams: Vec<Stream>,
    open: BTreeMap<u64, Lent<'py>>,
    ended: Vec<Lent<'py>>,
    operations: u64,
    /// A path has come again since, with streams allowed, until the next tick.
    replaced: bool,
}

fn key(number: u8) -> Key {
    Key {
        kind: number & 1,
        group: if number & 2 == 0 {
            String::new()
        } else {
            "group".to_owned()
        },
        step: u64::from(number >> 4),
        bucket: 0,
        tag: 0,
    }
}

/// Two peers, of whom each has two ranks.
fn peer(path: usize) -> Arc<str> {
    if path & 1 == 0 { "a".into() } else { "b".into() }
}

impl<'py> World<'py> {
    fn new(py: Python<'py>) -> Self {
        let events = Arc::new(EventQueue::default());
        let mut world = Self {
            py,
            matcher: Matcher::new(STORE, events.clone(), Arc::default()),
            events,
            paths: Vec::new(),
            held: Default::default(),
            streams: Vec::new(),
            open: BTreeMap::new(),
            ended: Vec::new(),
            operations: 0,
            replaced: false,
        };
        (0..4).for_each(|path| world.connect(path));
        world
    }

    fn connect(&mut self, at: usize) {
        let path = Arc::new(FakeChannel {
            number: self.operations * 8 + at as u64,
            account: (at / 2).to_string(),
            ..FakeChannel::default()
        });
        self.held[at].clear();
        if at < self.paths.len() {
            self.paths[at] = path;
        } else {
            self.paths.push(path);
        }
    }

    fn number(&mut self) -> u64 {
        self.operations += 1;
        self.operations
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Arrive {
                path,
                key: number,
                length,
                first,
            } => {
                let at = usize::from(*path) % self.paths.len();
                let number_of = self.streams.len();
                let header = Header {
                    key: key(*number),
                    job: String::new(),
                    dtype: String::new(),
                    shape: Vec::new(),
                    length: length.bytes(),
                    call: number_of.to_string(),
                };
                let message = self.matcher.arrived(&peer(at), header, &*self.paths[at]);
                let mut stream = Stream {
                    message,
                    path: at,
                    number: number_of,
                    at: 0,
                    open: true,
                };
                let part = stream.part(usize::from(*first) % FIRST_BYTES_MAX);
                assert!(stream.message.write(part));
                stream.at = part.len() as u64;
                self.streams.push(stream);
            }
            Step::Feed { message, bytes } => {
                if let Some(at) = self.stream(*message) {
                    self.streams[at].feed(usize::from(*bytes));
                }
            }
            Step::Whole { message } => {
                if let Some(at) = self.stream(*message) {
                    self.finish(at);
                }
            }
            Step::Reset { message } => {
                if let Some(at) = self.stream(*message) {
                    self.matcher.reset(&self.streams[at].message, "test");
                    self.streams[at].open = false;
                }
            }
            Step::Post { key: number, buffer } => {
                let length = buffer.as_ref().map(|length| length.bytes().min(STORE) as usize);
                let buffer = length.map(|length| PyByteArray::new(self.py, &vec![0xEE; length]));
                let posted = buffer.as_ref().map(|array| {
                    Posted::new(
                        PyBuffer::get(array.as_any()).expect("bytes can be lent"),
                        self.events.clone(),
                    )
                });
                let operation = self.number();
                self.open.insert(operation, Lent { buffer, left: None });
                let to = peer(usize::from(*number >> 3));
                self.matcher.post(
                    &to,
                    Post {
                        operation,
                        key: key(*number),
                        buffer: posted,
                    },
                );
            }
            Step::Cancel { post } => {
                let operation = u64::from(*post) % (self.operations + 1);
                let was_open = self.open.contains_key(&operation);
                assert_eq!(self.matcher.cancel(operation), was_open);
            }
            Step::Discard { before_step } => self.matcher.discard("group", u64::from(*before_step >> 4)),
            Step::Down { path, late } => {
                let at = usize::from(*path) % self.paths.len();
                self.down(at, false, *late);
                self.number();
                self.connect(at);
                self.replaced = true;
            }
        }
        self.hear();
    }

    fn stream(&self, number: u8) -> Option<usize> {
        let at = usize::from(number) % self.streams.len().max(1);
        self.streams.get(at).is_some_and(|stream| stream.open).then_some(at)
    }

    fn finish(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        while stream.open && stream.message.next() == Next::Read && stream.at < stream.message.header.length.min(STORE)
        {
            stream.feed(65536);
        }
        stream.feed(0);
        if stream.open && stream.at == stream.message.header.length && stream.message.next() == Next::Read {
            assert!(stream.message.whole());
            assert!(!stream.message.write(b"x"), "a byte too many is refused");
            self.matcher.completed(&stream.message);
            stream.open = false;
        }
    }

    fn down(&mut self, at: usize, last: bool, late: bool) {
        let path = self.paths[at].clone();
        path.ended.store(true, Ordering::SeqCst);
        let failure = last.then(|| Failure::Cancelled("over".to_owned()));
        self.matcher.disconnected(&peer(at), path.number, failure);
        for stream in &mut self.streams {
            if stream.path == at {
                stream.open &= late;
                stream.path = usize::MAX;
            }
        }
        if late {
            let header = self.streams.first().map(|stream| stream.message.header.clone());
            if let Some(header) = header {
                let message = self.matcher.arrived(&peer(at), header, &*path);
                assert!(
                    matches!(message.next(), Next::Stop(_)),
                    "a connection that has ended brings nothing"
                );
            }
        }
    }

    /// Take what was told, and hold it against what may be.
    fn hear(&mut self) {
        for event in self.events.drain() {
            match event {
                Event::Received {
                    operation,
                    header,
                    payload,
                    ..
                } => {
                    let lent = self.open.remove(&operation).expect("a post ends once");
                    let number: usize = header.call.parse().expect("its number");
                    let expected = &NOISE[number % 256..][..header.length as usize];
                    match (payload, &lent.buffer) {
                        (Arrived::Own(bytes), None) => assert_eq!(bytes, expected),
                        (Arrived::Posted, Some(buffer)) => {
                            assert_eq!(&buffer.to_vec()[..expected.len()], expected);
                        }
                        _ => panic!("it went elsewhere than it was posted"),
                    }
                    let left = lent.buffer.as_ref().map(|buffer| buffer.to_vec());
                    self.ended.push(Lent { left, ..lent });
                }
                Event::Failed { operation, .. } => {
                    let lent = self.open.remove(&operation).expect("a post ends once");
                    let left = lent.buffer.as_ref().map(|buffer| buffer.to_vec());
                    self.ended.push(Lent { left, ..lent });
                }
                Event::Release(buffer) => drop(buffer),
                _ => {}
            }
        }
        let mut kept: HashMap<(bool, &str), u64> = HashMap::new();
        for stream in &self.streams {
            let rank = (stream.message.peer.as_ref() == "a", stream.message.account());
            *kept.entry(rank).or_default() += stream.message.kept();
        }
        let firsts = (self.streams.len() * FIRST_BYTES_MAX) as u64;
        for bytes in kept.into_values() {
            assert!(bytes <= STORE + STORE / 8 + firsts, "{bytes} bytes are kept for nobody");
        }
        for (path, held) in self.paths.iter().zip(&mut self.held) {
            for hold in path.heard() {
                let (operation, ends) = ((hold.group, hold.step), !hold.waits);
                let due = if ends {
                    held.remove(&operation)
                } else {
                    held.insert(operation)
                };
                assert!(due, "each is said once, and taken back once");
            }
        }
        for (at, path) in self.paths.iter().enumerate() {
            assert!(path.window_raise.load(Ordering::SeqCst) <= STORE);
            let full = self.matcher.full(&peer(at), &path.account);
            let both = [&self.paths[at & 1], &self.paths[(at & 1) + 2]];
            let closed = both.iter().any(|path| path.closed.load(Ordering::SeqCst));
            assert!(!full || closed || self.replaced, "all are told of a full store");
        }
    }

    /// Let everything end.
    fn end(mut self) {
        for at in 0..self.streams.len() {
            if self.streams[at].open {
                self.finish(at);
            }
        }
        self.hear();
        for number in 0..=255 {
            self.take_all(number);
        }
        if ["a", "b"].iter().all(|name| self.matcher.held(name) == 0) {
            assert!(
                self.held.iter().all(HashSet::is_empty),
                "nothing waits, and something is held back"
            );
        }
        for at in 0..self.paths.len() {
            self.down(at, at >= 2, true);
        }
        self.hear();
        self.matcher.discard("group", u64::MAX);
        self.matcher.fail_all(&Failure::Cancelled("over".to_owned()));
        self.hear();
        assert!(self.open.is_empty(), "{} posts never ended", self.open.len());
        for lent in &self.ended {
            let now = lent.buffer.as_ref().map(|buffer| buffer.to_vec());
            assert_eq!(now, lent.left, "a buffer was written after it was given back");
            if let Some(buffer) = &lent.buffer {
                buffer.resize(0).expect("nobody holds it");
            }
        }
    }

    /// Take what waits with a key.
    fn take_all(&mut self, number: u8) {
        while self.matcher.held(&peer(usize::from(number >> 3))) > 0 {
            let before = self.matcher.held(&peer(usize::from(number >> 3)));
            self.act(&Step::Post {
                key: number,
                buffer: None,
            });
            if self.matcher.held(&peer(usize::from(number >> 3))) >= before {
                return;
            }
        }
    }
}

pub fn run(steps: &[Step]) {
    Python::initialize();
    Python::attach(|py| {
        let mut world = World::new(py);
        for step in steps.iter().take(STEPS_MAX) {
            world.act(step);
        }
        world.end();
    });
}
