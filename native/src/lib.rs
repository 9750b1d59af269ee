//! The native engine of hive-qos' transport: quinn-proto behind the interface of `transport/engine/base.py`.
//!
//! - `core` is what Python sees; `transport/engine/native_engine.py` turns it into an `Engine`.
//! - `engine` owns endpoints, connections and operations, with the `settings` that it was given; `thread` is where its
//!   tasks run; `link` is one connection, `incoming` and `outgoing` its two directions, `gate` who sends next, `mail` who
//!   gets which message; `tally` counts tasks.
//! - `endpoint` drives the protocol: it moves the packets of one socket; `connection` and `streams` are what tasks see of
//!   that, `path` where a peer is, `answering` when it hears that something has come.
//! - `buffers` and `memory` are the only files where Python's memory is touched; `events` is the only thread that takes
//!   the GIL. `wire` reads what peers send; `tls`, `socket` (with `sender` and `watch`), `congestion` (with `bbr`, `delay_bound`
//!   and `rate`) and `measure` say what they are, with what they share: `acks` and `base`.
//! - `guard` is where panics end; `fuzzed` is what fuzzers, and tests over their seeds, run.

mod acks;
mod answering;
mod base;
mod bbr;
mod buffers;
mod congestion;
mod connection;
mod core;
mod delay_bound;
mod endpoint;
mod engine;
mod events;
#[cfg(feature = "faults")]
mod faults;
mod filling;
/// What the targets in `fuzz/` run, and the tests over their seeds.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzed;
mod gate;
mod giving_way;
mod guard;
mod incoming;
mod link;
mod mail;
mod measure;
mod memory;
mod outgoing;
#[cfg(any(test, feature = "fuzzing"))]
mod pair;
mod path;
mod rate;
mod sender;
mod settings;
mod slice;
mod socket;
#[cfg(any(test, feature = "fuzzing"))]
mod specimen;
mod streams;
mod tally;
mod thread;
mod tls;
mod watch;
mod wire;

use pyo3::prelude::*;

/// What `guard.rs` promises needs it: a profile that aborts would end the process with the first panic.
const _: () = assert!(cfg!(panic = "unwind"), "build with panic = \"unwind\"");

/// `gil_used`: a build for an interpreter that can do without the GIL makes it take it, for nobody has tried this there.
/// Wheels are abi3's, which such an interpreter does not load; others than the first interpreter of a process PyO3 refuses.
#[pymodule(gil_used = true)]
fn hive_qos_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CONGESTION", congestion::NAMES)?;
    module.add_function(wrap_pyfunction!(events::read_header, module)?)?;
    module.add_function(wrap_pyfunction!(events::write_header, module)?)?;
    module.add_class::<core::Core>()?;
    module.add_class::<memory::Memory>()
}
