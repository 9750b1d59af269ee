//! Ten times a second: what every connection measured, whether its peer still lives, and which buffers can be let go of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Registry;
use super::engine::Engine;
use super::peer_session::{PeerSession, Stage};
use super::statistics::statistics_of;
use crate::events::EventQueue;
use crate::runtime::locks::locked;

pub(super) const TICK: Duration = Duration::from_millis(100);
/// A tick that came so much later was not the network's fault: peers are given that time again.
const HELD_UP: Duration = Duration::from_millis(500);

/// Begin what is done now and then.
pub fn begin(engine: &Arc<Engine>) {
    engine.spawn(tick(engine.clone()));
    engine.spawn(flush(engine.context.events.clone()));
    engine.spawn(announce(engine.clone()));
}

async fn tick(engine: Arc<Engine>) {
    let mut before = Instant::now();
    while !engine.over() {
        tokio::time::sleep(TICK).await;
        engine.context.faults.here("tick");
        let now = Instant::now();
        let late = now.saturating_duration_since(before).saturating_sub(TICK);
        before = now;
        let held_up = if late > HELD_UP { late } else { Duration::ZERO };
        let sessions: Vec<Arc<PeerSession>> = locked(&engine.sessions).values().cloned().collect();
        let mut snapshot = Vec::with_capacity(sessions.len());
        for session in sessions {
            session.tick(now, held_up);
            if session.is(Stage::Up) {
                snapshot.extend(statistics_of(&session));
            }
        }
        *locked(&engine.snapshot) = Arc::new(snapshot);
    }
}

/// Let go of buffers that no event follows, until the thread ends: also in an engine that broke.
async fn flush(events: Arc<EventQueue>) {
    loop {
        tokio::time::sleep(TICK).await;
        events.flush();
    }
}

async fn announce(engine: Arc<Engine>) {
    engine.context.matcher.announce_late().await;
}

#[cfg(test)]
mod tests {
    use std::thread;

    use pyo3::buffer::PyBuffer;
    use pyo3::prelude::*;
    use pyo3::types::{PyByteArray, PyList};

    use super::*;
    use crate::events::Event;
    use crate::python::event_delivery::deliver_all;
    use crate::runtime::fault_injection::Faults;
    use crate::testing::fixtures;

    #[test]
    fn a_buffer_that_no_event_follows_is_let_go_of_also_in_an_engine_that_broke() {
        Python::initialize();
        let queue = Arc::new(EventQueue::default());
        let (engine, network) = Engine::start(fixtures::settings("cubic"), queue.clone()).unwrap();
        begin(&engine);
        let deliver = Python::attach(|py| PyList::empty(py).getattr("append").unwrap().unbind());
        let events = thread::spawn({
            let queue = queue.clone();
            move || deliver_all(&queue, &Faults::default(), deliver, |why| panic!("{why}"))
        });
        // Twice when it has broken: what is done every tenth of a second may be done once more.
        for broken in [false, true, true] {
            if broken {
                engine.broke("of a test");
            }
            let lent = Python::attach(|py| {
                let lent = PyByteArray::new(py, b"lent");
                queue.push(Event::Release(PyBuffer::get(&lent).unwrap()));
                lent.unbind()
            });
            let since = Instant::now();
            while Python::attach(|py| lent.bind(py).resize(5)).is_err() {
                assert!(
                    since.elapsed() < Duration::from_secs(20),
                    "still lent; broken: {broken}"
                );
                thread::sleep(Duration::from_millis(5));
            }
        }
        network.end().join().unwrap();
        queue.end();
        events.join().unwrap();
    }
}
