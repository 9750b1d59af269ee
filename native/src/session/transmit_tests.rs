use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::time::Duration;

use quinn_proto::{ClientConfig, EndpointConfig, ServerConfig, TransportConfig};
use tokio::runtime::Handle;

use super::*;
use crate::congestion::path_measurement::PathMeasurement;
use crate::matching::holds::HOLDS_MAX;
use crate::quic::connection::Connection;
use crate::quic::endpoint::Endpoint;
use crate::quic::send_scheduler::LEVELS;
use crate::runtime::thread::Thread;
use crate::session::engine::Engine;
use crate::session::peer_session::Setup;
use crate::testing::fixtures;
use crate::udp::socket::Socket;
use crate::wire::HEADER_BYTES_MAX;

const OPERATION: u64 = 7;
/// What the peer takes of a message before it has read some of it.
const CREDIT_BYTES: u32 = 1 << 16;
static LONG: [u8; 1 << 20] = [7; 1 << 20];

#[test]
fn turns_are_served_by_level_and_of_one_level_the_oldest_first() {
    let order: Vec<i32> = (0..LEVELS)
        .flat_map(|level| [0, 1, TURNS_OF_LEVEL - 1].map(|before| rank(level, before)))
        .collect();
    assert!(order.is_sorted_by(|first, second| first > second), "{order:?}");
}

/// A connection that is up, over loopback, and the peer's side of it.
struct Up {
    engine: Arc<Engine>,
    thread: Thread,
    session: Arc<PeerSession>,
    peer: Connection,
    _endpoints: [Endpoint; 2],
    _sockets: [UdpSocket; 2], // after those that read them
}

impl Up {
    async fn new() -> Self {
        let (engine, thread) = Engine::start(fixtures::settings("cubic"), Arc::default()).unwrap();
        let (dials, is_dialled) = fixtures::crypto();
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(CREDIT_BYTES.into());
        let mut server = ServerConfig::with_crypto(is_dialled);
        server.transport_config(Arc::new(transport));
        let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let endpoints = sockets.each_ref().map(|socket| {
            socket.set_nonblocking(true).unwrap();
            // SAFETY: the sockets are kept as long as the endpoints.
            let adopted = unsafe { Socket::adopt(socket.as_raw_fd()) }.unwrap();
            let (endpoint, driver) = Endpoint::new(
                adopted,
                EndpointConfig::default(),
                server.clone(),
                false,
                Arc::default(),
            );
            tokio::spawn(driver);
            endpoint
        });
        let remote = sockets[1].local_addr().unwrap();
        let connection = endpoints[0]
            .connect(ClientConfig::new(dials), remote, "127.0.0.1", Arc::default())
            .unwrap();
        let dialled = endpoints[1].accept().await;
        let peer = endpoints[1].begin(dialled, server, Arc::default()).unwrap();
        connection.established().await.unwrap();
        let (number, here) = (engine.number(), Handle::current());
        let session = PeerSession::new(
            engine.context.clone(),
            engine.clone(),
            Setup {
                number,
                remote,
                dialled: true,
                bulk: false,
                hello: Bytes::new(),
                patience: Duration::from_secs(10),
                thread: here,
                measure: PathMeasurement::new(),
            },
        );
        tokio::spawn(session.clone().run(connection));
        while session.connection().is_none() {
            tokio::task::yield_now().await;
        }
        Self {
            engine,
            thread,
            session,
            peer,
            _endpoints: endpoints,
            _sockets: sockets,
        }
    }

    /// Send so many bytes, of which the peer takes as much as `act` does: how that ended.
    async fn send(&self, bytes: usize, act: impl AsyncFnOnce(&Self, oneshot::Sender<Failure>)) -> Option<Failure> {
        let message = Message {
            operation: OPERATION,
            header: Bytes::from_static(&LONG[..bytes]),
            payload: None,
            level: 1,
        };
        let (abort, aborted) = oneshot::channel();
        let mut send = pin!(send(self.session.clone(), message, aborted));
        let turn = poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx))).await;
        assert!(turn.is_pending(), "nobody has acknowledged it");
        tokio::join!(send, act(self, abort));
        let told = self.engine.context.events.drain();
        let end = told.into_iter().find_map(|event| match event {
            Event::SendDone(OPERATION) => Some(None),
            Event::Failed { failure, .. } => Some(Some(failure)),
            _ => None,
        });
        end.expect("its end is told")
    }

    async fn read(&self) {
        let mut stream = self.peer.accept_uni().await.unwrap();
        while stream.read_chunk(usize::MAX).await.unwrap().is_some() {}
    }
}

#[tokio::test]
async fn a_send_tells_how_it_ended() {
    let up = Up::new().await;
    let end = up.send(1000, async |up, _abort| up.read().await).await;
    assert!(end.is_none(), "all at once: {end:?}");
    let end = up.send(LONG.len(), async |up, _abort| up.read().await).await;
    assert!(end.is_none(), "finished: {end:?}");
    let stop = async |up: &Up, _abort| up.peer.accept_uni().await.unwrap().stop(7u32.into());
    let end = up.send(LONG.len(), stop).await;
    assert!(matches!(end, Some(Failure::Peer { .. })), "stopped: {end:?}");
    let abort = async |_: &Up, abort: oneshot::Sender<Failure>| {
        abort.send(Failure::Cancelled(String::new())).unwrap();
    };
    let end = up.send(LONG.len(), abort).await;
    assert!(matches!(end, Some(Failure::Cancelled(_))), "aborted: {end:?}");
    up.thread.end().join().unwrap();
    up.engine.let_go();
}

#[tokio::test]
async fn holds_wait_on_the_wire_until_those_before_them_are_told() {
    const HOLDS: usize = 30_000;
    let up = Up::new().await;
    up.session.verified("peer");
    let mut control = up.peer.open_uni().await.unwrap();
    let (hello, hold) = ([0, 1, 0xa0], [1, 1, 0xa0]);
    let mut said = [Bytes::from([&hello[..], &hold.repeat(HOLDS)].concat())];
    let says = poll_fn(|cx| {
        loop {
            match control.poll_write(cx, &mut said) {
                Poll::Ready(written) => drop(written.expect("the connection lives")),
                Poll::Pending => return Poll::Pending,
            }
            if said[0].is_empty() {
                return Poll::Ready(());
            }
        }
    });
    let events = &up.engine.context.events;
    let hears = async {
        let mut told = 0;
        while told < HOLDS {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let waiting = events.holds();
            assert!(waiting <= HOLDS_MAX + HEADER_BYTES_MAX / hold.len() + 1, "{waiting}");
            if waiting > 0 {
                told += waiting;
                events.take();
            }
        }
    };
    tokio::join!(says, hears);
    up.thread.end().join().unwrap();
    up.engine.let_go();
}
