//! Collectives as Python starts them (`transport/engine/native.py`), and the kernels as tests hold them against numpy's.

use std::sync::Arc;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::borrowed_buffers::Borrowed;
use crate::collective::codecs::{Codec, VALUE_BYTES};
use crate::collective::commands::Collectives;
use crate::collective::kernels::{Dtype, Kernel, ReduceOp};
use crate::collective::run::{Call, Peer, Run};
use crate::events::EventQueue;

/// An engine's collectives. They end in "collective" with their number; a step that fails is told by "step-failed".
#[pyclass(module = "hive_qos_native", frozen)]
pub struct CollectiveApi {
    pub collectives: Collectives,
    pub events: Arc<EventQueue>,
}

#[pymethods]
impl CollectiveApi {
    /// Carry out an encoded schedule over buffers, which are lent until its end. Whether it is taken.
    ///
    /// `members`: for each rank of the group its rank of the endpoint and its name, and the call in our words and in its.
    #[expect(clippy::too_many_arguments, reason = "what a collective is, each by its name")]
    #[pyo3(signature = (number, *, schedule, buffers, dtype, item_bytes, reduce_op, job, group, step, operation, members,
                        rank, level, bulk, order, missing=(0, 0)))]
    fn start(
        &self,
        py: Python<'_>,
        number: u64,
        schedule: &[u8],
        buffers: Vec<PyBuffer<u8>>,
        dtype: String,
        item_bytes: usize,
        reduce_op: &str,
        job: String,
        group: String,
        step: u64,
        operation: u32,
        members: Vec<(u32, String, String, String)>,
        rank: u32,
        level: usize,
        bulk: bool,
        order: u64,
        missing: (usize, usize),
    ) -> PyResult<bool> {
        let peers: Vec<Peer> = members
            .into_iter()
            .map(|(rank, name, says, hears)| Peer {
                rank,
                name,
                says,
                hears,
            })
            .collect();
        if rank as usize >= peers.len() || item_bytes == 0 || !buffers.iter().all(|buffer| buffer.is_c_contiguous()) {
            return Err(PyValueError::new_err(
                "a rank of the group, an element's size and contiguous buffers are needed",
            ));
        }
        let call = Call {
            number,
            job,
            group,
            step,
            operation,
            kernel: kernel(&dtype, reduce_op).filter(|kernel| kernel.item_bytes() == item_bytes),
            dtype,
            item_bytes,
            peers,
            rank,
            level,
            bulk,
            order,
            missing: missing.0..missing.1,
        };
        let buffers = buffers
            .into_iter()
            .map(|buffer| {
                let writable = !buffer.readonly();
                (Borrowed::new(buffer, self.events.clone()), writable)
            })
            .collect();
        let run = Run::new(call, schedule, buffers, self.events.clone()).map_err(PyValueError::new_err)?;
        Ok(py.detach(|| self.collectives.start(run)))
    }

    /// Of what one lacks, all before this address is there.
    fn read_on(&self, number: u64, missing_from: usize) {
        self.collectives.read_on(number, missing_from);
    }

    /// End one early: what it has under way is cancelled, then it ends.
    fn stop(&self, number: u64) {
        self.collectives.stop(number);
    }

    /// The connections that lead to a rank now.
    fn route(&self, rank: u32, bulk: bool, connections: Vec<u64>) {
        self.collectives.route(rank, bulk, connections);
    }

    /// A rank is gone for good, and what came from it before has been told.
    fn gone(&self, rank: u32) {
        self.collectives.gone(rank);
    }

    /// Wait until the peers have every message that counts as sent, for so long at most; whether they have.
    fn drain(&self, py: Python<'_>, timeout_s: f64) -> bool {
        let patience = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
        py.detach(|| self.collectives.drain(patience))
    }

    /// Payload bytes sent and received, and the ranks of the group that it waits for; None of one that has ended.
    fn progress(&self, py: Python<'_>, number: u64) -> Option<(u64, Vec<u32>)> {
        py.detach(|| self.collectives.progress(number))
    }
}

/// Whether values of a dtype can be reduced so without Python.
#[pyfunction]
pub fn reduces(dtype: &str, reduce_op: &str) -> bool {
    kernel(dtype, reduce_op).is_some()
}

/// Reduce equally long runs of values in rank order into `target`, for tests that hold this against Python's kernels.
#[pyfunction]
pub fn reduce(target: PyBuffer<u8>, sources: Vec<PyBuffer<u8>>, dtype: &str, reduce_op: &str) -> PyResult<()> {
    let kernel = kernel(dtype, reduce_op).ok_or_else(|| PyValueError::new_err("no such reduction"))?;
    let fits = |one: &PyBuffer<u8>| one.is_c_contiguous() && one.len_bytes() == target.len_bytes();
    if target.readonly() || sources.is_empty() || !fits(&target) || !sources.iter().all(fits) {
        return Err(PyValueError::new_err(
            "a writable target and sources of its length are needed",
        ));
    }
    let addresses: Vec<*const u8> = sources.iter().map(|one| one.buf_ptr().cast_const().cast()).collect();
    // SAFETY: all are contiguous and equally long, and their exporters keep them in place; a test lends no buffers that
    // overlap without being the same.
    unsafe { kernel.run(target.buf_ptr().cast(), &addresses, target.len_bytes(), sources.len()) };
    Ok(())
}

/// Encode float32 values as a collective does, for tests that hold this against Python's codecs.
#[pyfunction]
#[pyo3(signature = (target, source, residual, codec, divisor))]
pub fn encode(
    target: PyBuffer<u8>,
    source: PyBuffer<u8>,
    residual: Option<PyBuffer<u8>>,
    codec: u8,
    divisor: usize,
) -> PyResult<()> {
    let residual_fits = residual
        .as_ref()
        .is_none_or(|one| one.is_c_contiguous() && !one.readonly() && one.len_bytes() == source.len_bytes());
    let (codec, elems) = coding(&target, &target, &source, codec)?;
    if !residual_fits {
        return Err(PyValueError::new_err(
            "a writable residual of the values' length is needed",
        ));
    }
    let residual = residual.as_ref().map(|one| one.buf_ptr().cast());
    // SAFETY: all are contiguous and as long as they have to be, and their exporters keep them in place; a test lends no
    // buffers that overlap.
    unsafe {
        codec.encode(
            target.buf_ptr().cast(),
            source.buf_ptr().cast_const().cast(),
            residual,
            elems,
            divisor,
        )
    };
    Ok(())
}

/// Decode float32 values as a collective does, for tests that hold this against Python's codecs.
#[pyfunction]
pub fn decode(target: PyBuffer<u8>, source: PyBuffer<u8>, codec: u8) -> PyResult<()> {
    let (codec, elems) = coding(&target, &source, &target, codec)?;
    // SAFETY: as in `encode`.
    unsafe { codec.decode(target.buf_ptr().cast(), source.buf_ptr().cast_const().cast(), elems) };
    Ok(())
}

fn coding(
    written: &PyBuffer<u8>,
    encoded: &PyBuffer<u8>,
    values: &PyBuffer<u8>,
    codec: u8,
) -> PyResult<(Codec, usize)> {
    let codec = Codec::numbered(codec).ok_or_else(|| PyValueError::new_err("no such codec"))?;
    let elems = values.len_bytes() / VALUE_BYTES;
    let contiguous = encoded.is_c_contiguous() && values.is_c_contiguous() && !written.readonly();
    if !contiguous
        || !values.len_bytes().is_multiple_of(VALUE_BYTES)
        || encoded.len_bytes() != codec.encoded_bytes(elems)
    {
        return Err(PyValueError::new_err(
            "a writable target and a source of the codec's lengths are needed",
        ));
    }
    Ok((codec, elems))
}

fn kernel(dtype: &str, reduce_op: &str) -> Option<Kernel> {
    Kernel::of(Dtype::named(dtype)?, ReduceOp::named(reduce_op)?)
}
