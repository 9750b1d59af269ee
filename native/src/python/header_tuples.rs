//! Message headers as Python has them: the fields of `transport.wire.header.Header`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::wire::{self, Header, Key};

/// A header's fields in the order of `transport.wire.header.Header`; the first is the kind's number.
pub(super) fn tell_header(py: Python<'_>, header: Header) -> PyResult<Bound<'_, PyTuple>> {
    let key = header.key;
    let fields: [Bound<'_, PyAny>; 10] = [
        key.kind.into_pyobject(py)?.into_any(),
        header.job.into_pyobject(py)?.into_any(),
        key.group.into_pyobject(py)?.into_any(),
        key.step.into_pyobject(py)?.into_any(),
        key.bucket.into_pyobject(py)?.into_any(),
        key.tag.into_pyobject(py)?.into_any(),
        header.dtype.into_pyobject(py)?.into_any(),
        PyTuple::new(py, header.shape)?.into_any(),
        header.length.into_pyobject(py)?.into_any(),
        header.call.into_pyobject(py)?.into_any(),
    ];
    PyTuple::new(py, fields)
}

/// Write a `transport.wire.header.Header` as a stream begins with one; None where Python's own writer has to.
#[pyfunction]
pub fn write_header<'py>(py: Python<'py>, header: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let header = hear_header(header).ok()?;
    wire::encode_header(&header).map(|written| PyBytes::new(py, &written))
}

fn hear_header(header: &Bound<'_, PyAny>) -> PyResult<Header> {
    let py = header.py();
    let key = Key {
        kind: header.getattr(intern!(py, "kind"))?.extract()?,
        group: header.getattr(intern!(py, "group"))?.extract()?,
        step: header.getattr(intern!(py, "step"))?.extract()?,
        bucket: header.getattr(intern!(py, "bucket"))?.extract()?,
        tag: header.getattr(intern!(py, "tag"))?.extract()?,
    };
    Ok(Header {
        key,
        job: header.getattr(intern!(py, "job"))?.extract()?,
        dtype: header.getattr(intern!(py, "dtype"))?.extract()?,
        shape: header.getattr(intern!(py, "shape"))?.extract()?,
        length: header.getattr(intern!(py, "length"))?.extract()?,
        call: header.getattr(intern!(py, "call"))?.extract()?,
    })
}

/// Read a header as a stream begins with one, for tests that hold this reader against the one in Python.
///
/// Gives None while bytes are missing, (fields, where the payload begins), or (code, reason) where it is refused.
#[pyfunction]
pub fn read_header<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let read = wire::split_header(data).and_then(|found| {
        let Some((start, end)) = found else {
            return Ok(None);
        };
        Ok(Some((wire::decode_header(&data[start..end])?, end)))
    });
    match read {
        Ok(None) => Ok(None),
        Ok(Some((header, end))) => Ok(Some((tell_header(py, header)?, end).into_pyobject(py)?)),
        Err(violation) => Ok(Some((violation.code as u64, violation.reason).into_pyobject(py)?)),
    }
}
