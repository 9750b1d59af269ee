//! Memory of the engine that Python sees as a writable buffer: messages that arrived without a posted one.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

#[pyclass(module = "hive_qos_native", frozen)]
pub struct Memory {
    address: *mut u8,
    length: usize,
    capacity: usize,
}

// SAFETY: the memory is owned by this object alone and freed when it is, on whatever thread; Rust neither reads nor
// writes it any more, and what happens in it is Python's business, as with a bytearray.
unsafe impl Send for Memory {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Memory {}

impl Memory {
    /// A memoryview over `bytes`, which are not copied.
    pub fn view(py: Python<'_>, bytes: Vec<u8>) -> PyResult<Bound<'_, PyMemoryView>> {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let memory = Self {
            address: bytes.as_mut_ptr(),
            length: bytes.len(),
            capacity: bytes.capacity(),
        };
        PyMemoryView::from(&Bound::new(py, memory)?.into_any())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: these are the parts of a vector that was not dropped, and are taken apart once; every view of it that
        // Python has holds a reference to this object, which is dropped with the last of them.
        drop(unsafe { Vec::from_raw_parts(self.address, self.length, self.capacity) });
    }
}

#[pymethods]
impl Memory {
    /// The buffer protocol: contiguous writable bytes.
    ///
    /// # Safety
    /// Called by the interpreter, with a `view` that is its to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let memory = slf.get();
        let (address, length) = (memory.address, memory.length as ffi::Py_ssize_t);
        // SAFETY: `view` is not null and ours to fill; the memory lives as long as `slf`, to which the view takes a
        // reference, and neither moves nor changes its size.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address.cast(), length, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}
