//! A connection of ours whose peer, or whose path, does what it likes, in reckoned time.
//!
//! One of the two sides is hostile: its frames are spoiled before they are sealed with the good keys, and what it says of
//! TLS before that. The path spoils, loses, doubles and delays datagrams, and strangers send some. The other side does
//! what the engine does: it reads all streams that come, and sends. Whatever happens nothing panics, and when both are
//! told to close they are gone.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, Connection, ConnectionId, Dir, Side, TransportError, VarInt};

use crate::testing::fixtures;
use crate::testing::simulated_path::{DIALS, IS_DIALLED, Pair};

const DELAY: Duration = Duration::from_millis(10);
const TURNS: u32 = 20;
/// Longer than a connection is kept when nothing comes.
const ENDS_WITHIN: Duration = Duration::from_secs(120);
const STREAMS_MAX: usize = 8;
const CONGESTION: [&str; 3] = ["cubic", "bbr", "auto"];
static CONTENT: [u8; 4096] = [7; 4096];

#[derive(Arbitrary, Debug)]
pub enum Spoil {
    Leave(u8),
    Flip {
        at: u16,
        with: u8,
    },
    /// These frames in place of others; what is left is padding.
    Frames(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
pub enum OnWire {
    Pass(u8),
    Lose,
    Double,
    Delay(u8),
    Flip { at: u16, with: u8 },
    Cut(u16),
}

#[derive(Arbitrary, Debug)]
pub struct Input {
    congestion: u8,
    /// Else the side that is dialled is.
    dialling_side_is_hostile: bool,
    asks_for_proof: bool,
    /// What is done to packets before they are sealed, and to what TLS says.
    packets: Vec<Spoil>,
    tls: Vec<Spoil>,
    path: Vec<OnWire>,
    /// From the peer's address: in which turn, to whom.
    strangers: Vec<(u8, bool, Vec<u8>)>,
}

/// What is left to be done, the next of it last.
#[derive(Default)]
struct Plan(Vec<Spoil>);

impl Plan {
    fn spoil(&mut self, data: &mut [u8]) {
        match self.0.last_mut() {
            None => return,
            Some(Spoil::Leave(count)) if *count > 0 => {
                *count -= 1;
                return;
            }
            Some(Spoil::Leave(_)) => {}
            Some(Spoil::Flip { at, with }) => {
                if let Some(byte) = data.get_mut(usize::from(*at)) {
                    *byte ^= *with;
                }
            }
            Some(Spoil::Frames(frames)) => {
                let count = frames.len().min(data.len());
                data.fill(0);
                data[..count].copy_from_slice(&frames[..count]);
            }
        }
        self.0.pop();
    }
}

/// What a hostile side does, shared by all its keys.
#[derive(Clone)]
struct Hostile {
    packets: Arc<Mutex<Plan>>,
    tls: Arc<Mutex<Plan>>,
}

impl Hostile {
    fn key(&self, inner: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(HostileKey {
            inner,
            plan: self.packets.clone(),
        })
    }

    fn keys(&self, mut keys: Keys) -> Keys {
        keys.packet.local = self.key(keys.packet.local);
        keys
    }

    fn session(&self, inner: Box<dyn Session>) -> Box<dyn Session> {
        Box::new(HostileSession {
            inner,
            hostile: self.clone(),
        })
    }
}

struct HostileKey {
    inner: Box<dyn PacketKey>,
    plan: Arc<Mutex<Plan>>,
}

impl PacketKey for HostileKey {
    fn encrypt(&self, packet: u64, data: &mut [u8], header_len: usize) {
        let end = data.len() - self.inner.tag_len();
        self.plan.lock().unwrap().spoil(&mut data[header_len..end]);
        self.inner.encrypt(packet, data, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.inner.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

struct HostileSession {
    inner: Box<dyn Session>,
    hostile: Hostile,
}

impl Session for HostileSession {
    fn initial_keys(&self, identifier: &ConnectionId, side: Side) -> Keys {
        self.hostile.keys(self.inner.initial_keys(identifier, side))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, data: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(data)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn write_handshake(&mut self, data: &mut Vec<u8>) -> Option<Keys> {
        let before = data.len();
        let keys = self.inner.write_handshake(data);
        if data.len() > before {
            self.hostile.tls.lock().unwrap().spoil(&mut data[before..]);
        }
        keys.map(|keys| self.hostile.keys(keys))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let mut keys = self.inner.next_1rtt_keys()?;
        keys.local = self.hostile.key(keys.local);
        Some(keys)
    }

    fn is_valid_retry(&self, identifier: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(identifier, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

struct HostileClient(Arc<dyn crypto::ClientConfig>, Hostile);

impl crypto::ClientConfig for HostileClient {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = self.0.clone().start_session(version, name, parameters)?;
        Ok(self.1.session(session))
    }
}

struct HostileServer(Arc<dyn crypto::ServerConfig>, Hostile);

impl crypto::ServerConfig for HostileServer {
    fn initial_keys(&self, version: u32, identifier: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(self.1.keys(self.0.initial_keys(version, identifier)?))
    }

    fn retry_tag(&self, version: u32, identifier: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, identifier, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        self.1.session(self.0.clone().start_session(version, parameters))
    }
}

/// What the path does to a datagram: by how much later than others each copy of it arrives.
fn carry(path: &mut Vec<OnWire>, datagram: &mut Vec<u8>) -> Vec<Duration> {
    let in_time = Duration::ZERO;
    if let Some(OnWire::Pass(count)) = path.last_mut()
        && *count > 0
    {
        *count -= 1;
        return vec![in_time];
    }
    match path.pop() {
        None | Some(OnWire::Pass(_)) => {}
        Some(OnWire::Lose) => return vec![],
        Some(OnWire::Double) => return vec![in_time; 2],
        Some(OnWire::Delay(milliseconds)) => return vec![Duration::from_millis(u64::from(milliseconds))],
        Some(OnWire::Flip { at, with }) => {
            if let Some(byte) = datagram.get_mut(usize::from(at)) {
                *byte ^= with;
            }
        }
        Some(OnWire::Cut(length)) => datagram.truncate(usize::from(length)),
    }
    vec![in_time]
}

/// Do what the engine does with a connection: read what comes, send, give credit.
fn work(stack: &mut Connection, turn: u32) {
    if stack.is_handshaking() {
        return;
    }
    if turn == TURNS / 2 {
        stack.force_key_update();
        stack.set_receive_window(VarInt::from_u32(32 << 20));
        stack.set_max_concurrent_streams(Dir::Uni, VarInt::from_u32(1));
    }
    for _ in 0..STREAMS_MAX {
        let Some(id) = stack.streams().accept(Dir::Uni) else {
            break;
        };
        let mut stream = stack.recv_stream(id);
        if let Ok(mut chunks) = stream.read(true) {
            while let Ok(Some(_)) = chunks.next(usize::MAX) {}
            let _ = chunks.finalize();
        }
        let _ = stack.recv_stream(id).received_reset();
        let _ = stack.recv_stream(id).stop(VarInt::from_u32(turn));
    }
    if let Some(id) = stack.streams().open(Dir::Uni) {
        let mut stream = stack.send_stream(id);
        let _ = stream.set_priority(turn as i32);
        let _ = stream.write_chunks(&mut [Bytes::from_static(&CONTENT)]);
        let _ = match turn % 3 {
            0 => stream.finish().is_ok(),
            1 => stream.reset(VarInt::from_u32(turn)).is_ok(),
            _ => true,
        };
        let _ = stack.send_stream(id).stopped();
    }
    let _ = (stack.stats(), stack.crypto_session().peer_identity());
}

pub fn run(input: Input) {
    let settings = fixtures::settings(CONGESTION[usize::from(input.congestion) % CONGESTION.len()]);
    let plan = |mut steps: Vec<Spoil>| {
        steps.reverse();
        Arc::new(Mutex::new(Plan(steps)))
    };
    let hostile = Hostile {
        packets: plan(input.packets),
        tls: plan(input.tls),
    };
    let (dials, is_dialled) = fixtures::crypto();
    let mut pair = if input.dialling_side_is_hostile {
        Pair::new(&settings, DELAY, Arc::new(HostileClient(dials, hostile)), is_dialled)
    } else {
        Pair::new(&settings, DELAY, dials, Arc::new(HostileServer(is_dialled, hostile)))
    };
    pair.sides[IS_DIALLED].asks_for_proof = input.asks_for_proof;
    let mut path = input.path;
    path.reverse();
    for turn in 0..TURNS {
        for (when, to_dialling, datagram) in &input.strangers {
            if u32::from(*when) % TURNS == turn {
                let to = if *to_dialling { DIALS } else { IS_DIALLED };
                pair.put(pair.now, to, datagram.clone());
            }
        }
        pair.run(pair.now + DELAY, |_, _, datagram| carry(&mut path, datagram));
        for side in &mut pair.sides {
            if let Some((_, stack)) = &mut side.connection {
                work(stack, turn);
            }
        }
    }
    for side in &mut pair.sides {
        if let Some((_, stack)) = &mut side.connection {
            stack.close(pair.now, VarInt::from_u32(0x30), Bytes::from_static(b"enough"));
        }
    }
    pair.run(pair.now + ENDS_WITHIN, |_, _, datagram| carry(&mut path, datagram));
    assert!(
        pair.sides.iter().all(|side| side.connection.is_none()),
        "it does not end"
    );
}
