//! What a peer may write into its ring, and what ends its connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::*;
use crate::congestion::path_measurement::PathMeasurement;
use crate::runtime::thread::Thread;
use crate::session::engine::Engine;
use crate::session::peer_session::Setup;
use crate::shared_memory::region::{Region, Side};
use crate::testing::fixtures;
use crate::wire::encode_header;

const EAGER_BYTES: u64 = 100;

/// One side of a link, as its reader sees it, and the other side's socket.
struct Scene {
    engine: Arc<Engine>,
    thread: Thread,
    session: Arc<PeerSession>,
    inbound: Inbound,
    _peer: UnixStream,
}

impl Scene {
    fn new() -> Self {
        let (engine, thread) = Engine::start(fixtures::settings("cubic"), Arc::default()).unwrap();
        let session = PeerSession::new(
            engine.context.clone(),
            engine.clone(),
            Setup {
                number: engine.number(),
                remote: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
                dialled: true,
                bulk: false,
                hello: Bytes::new(),
                patience: Duration::from_secs(10),
                thread: Handle::current(),
                measure: PathMeasurement::new(),
            },
        );
        session.stage.send_replace(Stage::Up);
        let (socket, peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (link, _) = Link::new(Region::create().unwrap().0, Side::Dialler, socket).unwrap();
        let inbound = Inbound::new(&session, link, EAGER_BYTES);
        Self {
            engine,
            thread,
            session,
            inbound,
            _peer: peer,
        }
    }

    fn take(&mut self, kind: Kind, message: u64, content: &[u8]) -> Result<(), Violation> {
        let length = content.len();
        self.inbound
            .take(&self.session, Frame { kind, message, length }, [content, &[]])
    }

    /// What breaks the rules, once the good frames before it were taken.
    fn refused(good: &[(Kind, u64, &[u8])], bad: (Kind, u64, &[u8])) -> Code {
        let mut scene = Self::new();
        for (kind, message, content) in good {
            scene.take(*kind, *message, content).unwrap();
        }
        let refused = scene.take(bad.0, bad.1, bad.2).unwrap_err();
        scene.end();
        refused.code
    }

    fn end(self) {
        self.thread.end().join().unwrap();
        drop(self.inbound);
        self.engine.let_go();
    }
}

fn begin(tag: u64, length: u64) -> Vec<u8> {
    encode_header(&fixtures::header(tag, length)).unwrap()
}

#[tokio::test]
async fn messages_begin_one_behind_the_other_and_no_more_than_are_allowed() {
    let header = begin(1, 10);
    for number in [1, u64::MAX] {
        assert_eq!(
            Scene::refused(&[], (Kind::Begin, number, &header)),
            Code::ProtocolViolation
        );
    }
    let again = Scene::refused(&[(Kind::Begin, 0, &header)], (Kind::Begin, 0, &header));
    assert_eq!(again, Code::ProtocolViolation);
    let allowed: Vec<_> = (0..MESSAGES_AHEAD)
        .map(|number| (Kind::Begin, number, &header[..]))
        .collect();
    let beyond = Scene::refused(&allowed, (Kind::Begin, MESSAGES_AHEAD, &header));
    assert_eq!(beyond, Code::ProtocolViolation);
}

#[tokio::test]
async fn a_header_that_is_cut_or_followed_by_something_is_refused() {
    let header = begin(1, 10);
    for length in 0..header.len() {
        Scene::refused(&[], (Kind::Begin, 0, &header[..length]));
    }
    Scene::refused(&[], (Kind::Begin, 0, &[&header[..], b"?"].concat()));
    assert_eq!(
        Scene::refused(&[], (Kind::Begin, 0, &begin(1, 1 << 41))),
        Code::MessageTooLong
    );
}

#[tokio::test]
async fn data_of_no_message_or_beyond_its_length_or_unasked_is_refused() {
    let (short, long) = (begin(1, 10), begin(2, EAGER_BYTES + 50));
    assert_eq!(Scene::refused(&[], (Kind::Data, 0, b"?")), Code::ProtocolViolation);
    let whole: [(Kind, u64, &[u8]); 2] = [(Kind::Begin, 0, &short), (Kind::Data, 0, &[1; 10])];
    assert_eq!(
        Scene::refused(&whole[..1], (Kind::Data, 0, &[1; 11])),
        Code::LengthMismatch
    );
    assert_eq!(Scene::refused(&whole, (Kind::Data, 0, b"?")), Code::ProtocolViolation);
    let mut scene = Scene::new();
    scene.take(Kind::Begin, 0, &long).unwrap();
    let accepted = scene.inbound.arriving[&0].accepted;
    assert!(accepted, "the store has room for all of it");
    scene.inbound.arriving.get_mut(&0).unwrap().accepted = false;
    scene.take(Kind::Data, 0, &[1; EAGER_BYTES as usize]).unwrap();
    scene.inbound.arriving.get_mut(&0).unwrap().accepted = false;
    let unasked = scene.take(Kind::Data, 0, b"?").unwrap_err();
    assert_eq!(unasked.code, Code::ProtocolViolation);
    scene.end();
}

#[tokio::test]
async fn a_code_has_four_bytes_and_an_answer_for_a_message_that_is_over_says_nothing() {
    for kind in [Kind::Reset, Kind::Stop, Kind::Accept] {
        for length in [0, 3, 5] {
            assert_eq!(
                Scene::refused(&[], (kind, 0, &[0; 5][..length])),
                Code::ProtocolViolation
            );
        }
        let mut scene = Scene::new();
        scene.take(kind, 7, &0x30u32.to_le_bytes()).unwrap();
        scene.end();
    }
}

#[tokio::test]
async fn a_message_is_stored_and_one_that_is_reset_takes_no_memory() {
    let mut scene = Scene::new();
    scene.take(Kind::Begin, 0, &begin(1, 10)).unwrap();
    scene.take(Kind::Data, 0, b"hello").unwrap();
    let held = || scene.engine.context.matcher.held(&scene.session.peer());
    assert!(held() > 0);
    scene.take(Kind::Reset, 0, &0x30u32.to_le_bytes()).unwrap();
    assert_eq!(scene.engine.context.matcher.held(&scene.session.peer()), 0);
    scene.take(Kind::Begin, 1, &begin(1, 5)).unwrap();
    scene.take(Kind::Data, 1, b"hello").unwrap();
    assert!(scene.inbound.arriving.is_empty(), "it is whole");
    scene.end();
}
