//! The native engine of hive-qos' transport: quinn-proto behind the interface of `transport/engine/base.py`.
//!
//! Who knows whom goes one way, downwards:
//!
//! - `python` is what Python sees; `transport/engine/native.py` turns it into an `Engine`.
//! - `collective` carries out whole collectives.
//! - `session` is the engine: the endpoints that it serves and each connection of it, with its operations.
//! - `matching` decides which message goes to which receive.
//! - `borrowed_buffers` is Python's memory while bytes move without the GIL.
//! - `shared_memory` is what two engines of one host have instead of packets.
//! - `quic` drives quinn-proto: one task for each socket, and connections and streams as tasks see them.
//! - `events` is what the caller is told, in its order.
//! - `congestion` has the controllers and what they measure of a path.
//! - `udp` moves datagrams; `wire` reads and writes what the protocol says.
//! - `settings` is what the engine was given; `runtime` has threads, tasks and what a panic ends.
//!
//! `testing` is what tests and fuzzers share.

mod borrowed_buffers;
mod collective;
mod congestion;
mod events;
mod matching;
mod python;
mod quic;
mod runtime;
mod session;
mod settings;
mod shared_memory;
#[cfg(any(test, feature = "fuzzing"))]
pub mod testing;
mod udp;
mod wire;

use pyo3::prelude::*;

use self::python::{collective_api, engine_api, header_tuples, received_buffer};

/// What `runtime::supervision` promises needs it: a profile that aborts would end the process with the first panic.
const _: () = assert!(cfg!(panic = "unwind"), "build with panic = \"unwind\"");

/// `gil_used`: a build for an interpreter that can do without the GIL makes it take it, for nobody has tried this there.
/// Wheels are abi3's, which such an interpreter does not load; others than the first interpreter of a process PyO3 refuses.
#[pymodule(gil_used = true)]
fn hive_qos_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CONGESTION", congestion::NAMES)?;
    module.add_function(wrap_pyfunction!(header_tuples::read_header, module)?)?;
    module.add_function(wrap_pyfunction!(header_tuples::write_header, module)?)?;
    module.add_function(wrap_pyfunction!(collective_api::reduces, module)?)?;
    module.add_function(wrap_pyfunction!(collective_api::reduce, module)?)?;
    module.add_function(wrap_pyfunction!(collective_api::encode, module)?)?;
    module.add_function(wrap_pyfunction!(collective_api::decode, module)?)?;
    module.add_class::<collective_api::CollectiveApi>()?;
    module.add_class::<engine_api::Core>()?;
    module.add_class::<received_buffer::Memory>()
}
