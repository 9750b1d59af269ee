//! Bytes of `hive-tensor/1` as `docs/reference/wire.md` defines them: integers, the strict CBOR reader, message headers.
//!
//! Whatever a peer sends passes through here: every length is held against what is left of the input before anything
//! of that size exists, and the same limits and codes hold as in `transport/wire`.

mod cbor;
mod error_codes;
mod framing;
mod header;
mod header_writer;
mod hold;
mod stream_readers;

pub use self::error_codes::{Code, Violation, code_name};
pub use self::framing::{HEADER_BYTES_MAX, split_header};
#[cfg(any(test, feature = "fuzzing"))]
pub use self::framing::{decode_varint, split_frame};
pub use self::header::{Header, KIND_COLLECTIVE, KIND_CONTROL, Key, decode_header};
pub use self::header_writer::encode_header;
pub use self::hold::Hold;
pub use self::stream_readers::{ControlFrame, ControlReader, HeaderReader};

#[cfg(test)]
mod wire_tests;
