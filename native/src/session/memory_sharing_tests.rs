//! Who dialled is answered where memory is shared, and nowhere else.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream as Peer;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::*;
use crate::congestion::path_measurement::PathMeasurement;
use crate::session::peer_session::Setup;
use crate::testing::fixtures;

const TOKEN: Token = [7; TOKEN_BYTES];

#[tokio::test]
async fn who_dialled_is_answered_once_and_not_where_memory_is_shared_already_or_the_connection_has_ended() {
    let (engine, thread) = Engine::start(fixtures::settings("cubic"), Arc::default()).unwrap();
    let setup = Setup {
        number: engine.number(),
        remote: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        dialled: false,
        bulk: false,
        hello: Bytes::new(),
        patience: Duration::from_secs(10),
        thread: Handle::current(),
        measure: PathMeasurement::new(),
    };
    let session = PeerSession::new(engine.context.clone(), engine.clone(), setup);
    let come = || {
        let (ours, theirs) = Peer::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let ours = UnixStream::from_std(ours).unwrap();
        let region = Region::create().unwrap().0;
        Link::allow_first(&region, Side::Dialled, 100);
        (join(&session, region, Side::Dialled, ours, 100, Some(&TOKEN)), theirs)
    };
    session.stage.send_replace(Stage::Ended);
    let (refused, mut stream) = come();
    assert!(refused.is_err());
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0, "the connection has ended");
    session.stage.send_replace(Stage::Up);
    let (joined, mut first) = come();
    joined.unwrap();
    let mut answer = [0; TOKEN_BYTES];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(answer, TOKEN);
    let (refused, mut second) = come();
    assert!(refused.is_err());
    assert_eq!(second.read(&mut [0; 64]).unwrap(), 0, "it shares memory already");
    drop(first);
    thread.end().join().unwrap();
    engine.let_go();
}
