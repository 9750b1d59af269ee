//! An engine from its start to its end, without a network: its connections never begin.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::congestion::path_measurement::PathMeasurement;
use crate::session::peer_session::Setup;
use crate::testing::fixtures;

const OPERATION: u64 = 7;

fn start() -> (Arc<Engine>, Thread) {
    Engine::start(fixtures::settings("cubic"), Arc::default()).unwrap()
}

/// A connection that counts as up, though nothing ever goes over it.
fn connect(engine: &Arc<Engine>, thread: &Thread) -> Arc<PeerSession> {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let (number, handle) = (engine.number(), thread.handle.clone());
    let session = PeerSession::new(
        engine.context.clone(),
        engine.clone(),
        Setup {
            number,
            remote: nobody,
            dialled: true,
            bulk: false,
            hello: Bytes::new(),
            patience: Duration::from_secs(10),
            thread: handle,
            measure: PathMeasurement::new(),
        },
    );
    session.stage.send_replace(Stage::Up);
    locked(&engine.sessions).insert(number, session.clone());
    session
}

#[test]
fn what_one_certificate_may_have_unread_over_many_connections_is_bounded() {
    let (engine, thread) = start();
    let (matcher, store) = (&engine.context.matcher, engine.context.settings.unexpected_bytes_max);
    let mut credit = Vec::new();
    for number in 0..512 {
        let session = connect(&engine, &thread);
        session.stage.send_replace(Stage::Verified);
        assert!(session.begin(format!("rank {number}"), String::new(), u64::MAX, None));
        // Messages that nobody takes, until the store is full; given up again, so that there is one such account.
        let waiting: Vec<_> = (0..31)
            .map(|tag| matcher.arrived(&session.peer(), fixtures::header(tag, 1 << 40), &*session))
            .collect();
        waiting.iter().for_each(|message| matcher.reset(message, "given up"));
        let state = session.lock();
        credit.push(state.window + state.window_raise);
    }
    assert!(credit[..16].iter().all(|credit| *credit > store * 5 / 4));
    let bytes = credit.iter().sum::<u64>() / 7 * 8; // as `set_window` has it
    assert!(bytes < 8 << 30, "{bytes} bytes");
    thread.end().join().unwrap();
    engine.let_go();
}

fn message(header: Bytes) -> Message {
    Message {
        operation: OPERATION,
        header,
        payload: None,
        level: 1,
    }
}

#[test]
fn a_message_that_waits_keeps_neither_its_connection_nor_its_engine() {
    let (engine, thread) = start();
    let session = connect(&engine, &thread);
    let message = engine
        .context
        .matcher
        .arrived(&session.peer(), fixtures::header(1, 2), &*session);
    assert!(message.write(b"ok"));
    engine.context.matcher.completed(&message);
    let ended = Arc::downgrade(&session);
    locked(&engine.sessions).clear();
    drop((message, session));
    assert!(ended.upgrade().is_none(), "what waits keeps its connection");
    thread.end().join().unwrap();
    engine.let_go();
    let left = Arc::downgrade(&engine);
    drop(engine);
    assert!(left.upgrade().is_none(), "it keeps itself alive");
}

/// What is sent, which notes when it is let go of whether the list of sends was held then.
struct Watched {
    engine: Arc<Engine>,
    held: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        b"watched"
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.held.store(self.engine.sends.try_lock().is_err(), Ordering::SeqCst);
    }
}

#[test]
fn a_send_that_close_overtakes_is_let_go_of_before_its_end_can_be_told() {
    let (engine, thread) = start();
    let session = connect(&engine, &thread);
    thread.end().join().unwrap(); // as `close` does: from here on `let_go` tells how sends end
    let held = Arc::new(AtomicBool::new(false));
    let watched = Watched {
        engine: engine.clone(),
        held: held.clone(),
    };
    assert!(engine.send(session.number, message(Bytes::from_owner(watched))));
    assert!(
        held.load(Ordering::SeqCst),
        "`let_go` might have told its end while it was still lent"
    );
    engine.let_go();
    let told = engine.context.events.drain();
    let ends = told.iter().filter(|event| {
        matches!(
            event,
            Event::Failed {
                operation: OPERATION,
                ..
            }
        )
    });
    assert_eq!(ends.count(), 1);
}
