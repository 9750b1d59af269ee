use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use quinn_proto as proto;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::crypto::ring::default_provider;
use rustls::server::ResolvesServerCertUsingSni;
use rustls::{RootCertStore, version};
use tokio::time::sleep_until;

use super::*;
use crate::quic::connection;
use crate::quic::gso_size::segments_in;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn no_more_is_sent_at_once_than_the_path_carries_in_a_moment() {
    let alone = |batch, rate| segments_in(batch, rate, rate, 1452);
    assert_eq!(alone(BATCH_TIME, 125_000_000), 43); // 1 Gbit/s
    assert_eq!(alone(BATCH_TIME_BULK, 125_000_000), 21);
    assert_eq!(alone(BATCH_TIME, 12_500_000), 8); // 100 Mbit/s
    assert_eq!(alone(BATCH_TIME, 2_500_000), 4); // 20 Mbit/s
    assert_eq!(alone(BATCH_TIME, 500_000), 1); // 4 Mbit/s
    assert_eq!(alone(BATCH_TIME, 0), 8);
}

#[test]
fn paths_that_share_a_socket_send_batches_as_large_as_they_carry_together() {
    let beside = |rate| segments_in(BATCH_TIME, rate, 125_000_000, 1452);
    assert_eq!(beside(62_500_000), 43);
    assert_eq!(beside(12_500_000), 21); // 2.5 ms of its own
    assert_eq!(beside(500_000), 1);
    assert_eq!(beside(0), 8);
    assert_eq!(segments_in(BATCH_TIME, 125_000_000, 0, 1452), 43); // those of before are summed up
}

fn adopt(socket: &UdpSocket) -> Socket {
    // SAFETY: the test keeps `socket` as long as what it gets.
    unsafe { Socket::adopt(socket.as_raw_fd()) }.unwrap()
}

/// An endpoint whose driver works when the test lets it; nobody it talks to has a certificate.
struct Served {
    endpoint: Endpoint,
    driver: Driver,
    socket: UdpSocket, // after those that read it
}

fn bound() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl Served {
    fn new() -> Self {
        let socket = bound();
        let server = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server).unwrap()));
        let (endpoint, driver) =
            Endpoint::new(adopt(&socket), EndpointConfig::default(), server, false, Arc::default());
        Self {
            endpoint,
            driver,
            socket,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    fn dial(&self, remote: SocketAddr) -> Connection {
        let client = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap()));
        self.endpoint.connect(config, remote, "peer", Arc::default()).unwrap()
    }

    fn drive(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut self.driver).poll(&mut cx).is_pending());
    }

    /// Let the driver work until there is what is waited for.
    async fn until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            self.drive();
            if let Some(found) = found(self) {
                return found;
            }
            sleep_until(tokio::time::Instant::now() + Duration::from_millis(1)).await;
        }
        panic!("it has not come in {PATIENCE:?}");
    }

    /// Dial somebody who says nothing: the connection, and the identifier by which he may answer.
    async fn dial_silent(&mut self, peer: &UdpSocket) -> (Connection, Vec<u8>) {
        let connection = self.dial(peer.local_addr().unwrap());
        let packet = self.until(|_| received(peer)).await;
        let own = 6 + usize::from(packet[5]); // behind type, version and the peer's identifier
        let length = usize::from(packet[own]);
        (connection, packet[own + 1..own + 1 + length].to_vec())
    }
}

fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut room = [0; 2048];
    let length = socket.recv(&mut room).ok()?;
    Some(room[..length].to_vec())
}

#[tokio::test]
async fn what_was_heard_is_told_though_nothing_can_be_sent() {
    let (mut served, peer) = (Served::new(), bound());
    let (connection, identifier) = served.dial_silent(&peer).await;
    let before = connection.stats().unwrap().udp_rx.datagrams;
    let mut packet = vec![0xe0, 0, 0, 0, 1, identifier.len() as u8]; // of the handshake, which nobody can read yet
    packet.extend(identifier);
    packet.extend([0, 60]);
    packet.extend([7; 60]);
    peer.send_to(&packet, served.address()).unwrap();
    let shared = served.driver.shared.clone();
    let mut state = shared.lock();
    served.driver.look = true;
    served.driver.read(&mut Context::from_waker(Waker::noop()), &mut state);
    served.driver.settle(&mut state);
    assert_eq!(connection.stats().unwrap().udp_rx.datagrams, before + 1);
}

#[tokio::test]
async fn one_that_started_over_resets_the_connections_of_before() {
    let (mut served, peer) = (Served::new(), bound());
    let (_, identifier) = served.dial_silent(&peer).await;
    served.endpoint.shared.lock().start_over("a panic");
    let mut packet = vec![0x40]; // of a connection that is up
    packet.extend(identifier);
    packet.extend([7; 60]);
    peer.send_to(&packet, served.address()).unwrap();
    let is_short = |packet: &Vec<u8>| packet[0] & 0x80 == 0;
    let answer = served.until(|_| received(&peer).filter(is_short)).await;
    assert!(answer.len() < packet.len()); // else two that have started over would answer each other for ever
}

#[tokio::test]
async fn who_dialled_one_that_has_started_over_since_is_forgotten() {
    let (mut served, mut peer) = (Served::new(), Served::new());
    for what in ["begin", "ignore", "retry"] {
        peer.dial(served.address());
        peer.drive();
        let came = |served: &mut Served| (!served.endpoint.shared.lock().incoming.is_empty()).then_some(());
        served.until(came).await;
        let dialled = served.endpoint.accept().await;
        let (start, server) = {
            let mut state = served.endpoint.shared.lock();
            state.start_over("a panic");
            (state.start, ServerConfig::clone(&state.server))
        };
        match what {
            "begin" => assert!(served.endpoint.begin(dialled, server, Arc::default()).is_none()),
            "ignore" => served.endpoint.ignore(dialled),
            _ => served.endpoint.retry(dialled),
        }
        assert_eq!(served.endpoint.shared.lock().start, start, "{what}: it panicked again");
    }
}

#[tokio::test]
async fn nobody_on_another_thread_waits_for_a_driver_at_work_and_it_does_all_that_was_wished() {
    let (mut served, peer, other) = (Served::new(), bound(), bound());
    let (connection, _) = served.dial_silent(&peer).await;
    let next = adopt(&other);
    let (endpoint, (done, told)) = (&served.endpoint, mpsc::channel());
    let waited = thread::scope(|threads| {
        let (_endpoint, _connection) = (endpoint.shared.lock(), connection.lock());
        threads.spawn(|| {
            endpoint.rebind(next);
            connection.move_on();
            connection.ping();
            connection.close(7u32.into(), b"enough");
            done.send(())
        });
        told.recv_timeout(PATIENCE)
    });
    assert!(waited.is_ok(), "it waited for the driver");
    assert!(connection.close_reason().is_none());
    let from = served.until(|_| Some(peer.recv_from(&mut [0; 2048]).ok()?.1));
    assert_eq!(from.await, other.local_addr().unwrap());
    let ended = connection.close_reason();
    assert!(matches!(
        ended,
        Some(connection::Ended::Quic(proto::ConnectionError::LocallyClosed))
    ));
}

#[tokio::test]
async fn connections_whose_driver_is_gone_have_ended_for_who_waits_for_that() {
    let mut served = Served::new();
    let (connection, _) = served.dial_silent(&bound()).await;
    connection.close(7u32.into(), b"enough");
    drop(served.driver);
    assert!(connection.close_reason().is_some());
}
