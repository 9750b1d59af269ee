//! An engine from its start to its end, without a network: its connections never begin.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;

use super::*;
use crate::measure::Measure;
use crate::specimen;

fn start() -> (Arc<Engine>, Thread) {
    Engine::start(specimen::settings("cubic"), Arc::default()).unwrap()
}

/// A connection that counts as up, though nothing ever goes over it.
fn connect(engine: &Arc<Engine>, thread: &Thread) -> Arc<Link> {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let (number, handle) = (engine.number(), thread.handle.clone());
    let link = Link::new(
        engine.clone(),
        handle,
        number,
        nobody,
        Bytes::new(),
        true,
        false,
        Measure::new(),
    );
    link.stage.send_replace(Stage::Up);
    locked(&engine.links).insert(number, link.clone());
    link
}

#[test]
fn a_closed_engine_is_freed_although_a_message_waits_that_nobody_took() {
    let (engine, thread) = start();
    let link = connect(&engine, &thread);
    let slot = engine.mail.arrived(&link.peer(), specimen::header(1, 2), link.clone());
    assert!(slot.write(b"ok"));
    engine.mail.completed(&slot);
    drop((slot, link));
    thread.end().join().unwrap();
    engine.let_go();
    let left = Arc::downgrade(&engine);
    drop(engine);
    assert!(left.upgrade().is_none(), "it keeps itself alive");
}
