//! What an engine of a test is like, and an identity for it whose key everybody knows: RFC 8032 7.1, the first test.
//!
//! The key is Ed25519's, whose signatures are all of one length, so that the packets of a handshake are too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn_proto::crypto::{ClientConfig, ServerConfig};
use tokio::sync::mpsc;

use crate::matching::incoming_message::Channel;
use crate::quic::tls::Identity;
use crate::settings::Settings;
use crate::wire::{ControlFrame, ControlReader, Hold};
#[cfg(test)]
use crate::wire::{Header, Key};

const PROTOCOL: &str = "hive-tensor/1";
/// Of a `FakeChannel`.
pub const STREAM_WINDOW_BYTES: u64 = 1 << 16;
pub const SAID_MAX: usize = 8;
const SECRET: [u8; 32] = [
    0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4, 0x44, 0x49, 0xc5,
    0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
];
const PUBLIC: [u8; 32] = [
    0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe, 0xd3, 0xc9, 0x64, 0x07, 0x3a, 0x0e, 0xe1, 0x72,
    0xf3, 0xda, 0xa6, 0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07, 0x51, 0x1a,
];
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const TIME: u8 = 0x17;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// As `EngineSettings` in `transport/engine/base.py` has them by itself, between two native engines; but few streams, so
/// that tests come to where there are no more.
pub fn settings(congestion: &str) -> Settings {
    Settings {
        unexpected_bytes_max: 64 << 20,
        message_bytes_max: 1 << 40,
        streams_max: 64,
        keep_alive: Duration::from_secs(1),
        dead_after: Duration::from_secs(2),
        handshake_timeout: Duration::from_secs(10),
        datagram_bytes: 1452,
        congestion: congestion.to_owned(),
        protocol: PROTOCOL.to_owned(),
        shared_memory: false,
    }
}

/// A connection without a network, of which only what the matcher asks of it is kept.
#[derive(Default)]
pub struct FakeChannel {
    pub number: u64,
    pub account: String,
    pub window_raise: AtomicU64,
    pub closed: AtomicBool,
    pub ended: AtomicBool,
    pub said: Said,
}

impl FakeChannel {
    /// What was said in its control stream since.
    pub fn heard(&self) -> Vec<Hold> {
        let (mut reader, mut heard) = (ControlReader::default(), Vec::new());
        let mut said = self.said.1.lock().expect("nobody panics there");
        let frames = std::iter::from_fn(|| said.try_recv().ok());
        for frame in std::iter::once(vec![0, 1, 0xa0]).chain(frames) {
            let hear = |frame: ControlFrame<'_>| match frame {
                ControlFrame::Hold(hold) => heard.push(hold),
                ControlFrame::Hello(_) => {}
            };
            reader.take(&frame, hear).expect("it is well written");
        }
        heard
    }

    /// As when the connection has ended.
    #[cfg(test)]
    pub fn close(&self) {
        self.said.1.lock().unwrap().close();
    }
}

/// The two ends of what goes into its control stream.
pub struct Said(mpsc::Sender<Vec<u8>>, Mutex<mpsc::Receiver<Vec<u8>>>);

impl Default for Said {
    fn default() -> Self {
        let (says, said) = mpsc::channel(SAID_MAX);
        Self(says, Mutex::new(said))
    }
}

impl Channel for FakeChannel {
    fn id(&self) -> u64 {
        self.number
    }

    fn account(&self) -> String {
        self.account.clone()
    }

    fn stream_window(&self) -> u64 {
        STREAM_WINDOW_BYTES
    }

    fn raise_window(&self, bytes: u64) {
        self.window_raise.fetch_max(bytes, Ordering::SeqCst);
    }

    fn full(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn says(&self) -> mpsc::Sender<Vec<u8>> {
        self.said.0.clone()
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// What a message of so many bytes says of itself.
#[cfg(test)]
pub fn header(tag: u64, length: u64) -> Header {
    Header {
        key: key(tag),
        job: String::new(),
        dtype: String::new(),
        shape: Vec::new(),
        length,
        call: String::new(),
    }
}

/// What a post for such a message has to say.
#[cfg(test)]
pub fn key(tag: u64) -> Key {
    Key {
        kind: 2,
        group: String::new(),
        step: 0,
        bucket: 0,
        tag,
    }
}

/// The cryptography of one who dials and of one who is dialled, both of this key, who have not met before.
pub fn crypto() -> (Arc<dyn ClientConfig>, Arc<dyn ServerConfig>) {
    let identity = Identity::new(vec![certificate()], private_key(), PROTOCOL).expect("it is a good one");
    (identity.client, identity.server)
}

/// What DER says of one thing, which is shorter than 256 bytes.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u8;
    let long: &[u8] = if length < 128 { &[] } else { &[0x81] };
    [&[tag], long, &[length], content].concat()
}

fn algorithm() -> Vec<u8> {
    der(SEQUENCE, &der(0x06, &[0x2b, 0x65, 0x70])) // id-Ed25519, RFC 8410
}

/// In PKCS 8.
fn private_key() -> Vec<u8> {
    let secret = der(OCTETS, &der(OCTETS, &SECRET));
    der(SEQUENCE, &[der(INTEGER, &[0]), algorithm(), secret].concat())
}

/// A certificate of the key, which nobody has signed: who it is of is not judged here.
fn certificate() -> Vec<u8> {
    let bits = |bytes: &[u8]| der(BITS, &[&[0], bytes].concat());
    let nobody = der(SEQUENCE, &[]);
    let times = [der(TIME, b"260101000000Z"), der(TIME, b"360101000000Z")].concat();
    let tbs = [
        der(VERSION, &der(INTEGER, &[2])),
        der(INTEGER, &[1]),
        algorithm(),
        nobody.clone(),
        der(SEQUENCE, &times),
        nobody,
        der(SEQUENCE, &[algorithm(), bits(&PUBLIC)].concat()),
    ];
    der(
        SEQUENCE,
        &[der(SEQUENCE, &tbs.concat()), algorithm(), bits(&[0; 64])].concat(),
    )
}
