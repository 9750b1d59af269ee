//! Variable-length integers, and where headers and control frames begin and end in a stream.

use super::error_codes::{Code, Violation, invalid};

/// Longest header or control frame.
pub const HEADER_BYTES_MAX: usize = 4096;

/// Read a variable-length integer (RFC 9000 16) at the front: its value and length, or None while bytes are missing.
pub fn decode_varint(data: &[u8]) -> Option<(u64, usize)> {
    let first = *data.first()?;
    let length = 1 << (first >> 6);
    let bytes = data.get(1..length)?;
    let value = bytes
        .iter()
        .fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Find the header at the front of a stream: where its map begins and where the payload does, or None while incomplete.
pub fn split_header(data: &[u8]) -> Result<Option<(usize, usize)>, Violation> {
    let Some((size, start)) = decode_varint(data) else {
        return Ok(None);
    };
    if size > HEADER_BYTES_MAX as u64 {
        return Err(Violation::new(
            Code::HeaderTooLarge,
            format!("a header of {size} bytes; {HEADER_BYTES_MAX} are allowed"),
        ));
    }
    if size == 0 {
        return Err(invalid("a header of no bytes"));
    }
    let end = start + size as usize;
    Ok((end <= data.len()).then_some((start, end)))
}

/// Cut one frame off the front of a control stream: its type, where its map begins and where it ends.
pub fn split_frame(data: &[u8]) -> Result<Option<(u64, usize, usize)>, Violation> {
    let Some((kind, at)) = decode_varint(data) else {
        return Ok(None);
    };
    let Some((size, more)) = decode_varint(&data[at..]) else {
        return Ok(None);
    };
    if size > HEADER_BYTES_MAX as u64 {
        let reason = format!("a control frame of {size} bytes; {HEADER_BYTES_MAX} are allowed");
        return Err(Violation::new(Code::ProtocolViolation, reason));
    }
    let start = at + more;
    let end = start + size as usize;
    Ok((end <= data.len()).then_some((kind, start, end)))
}
