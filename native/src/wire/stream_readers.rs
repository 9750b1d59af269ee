//! What streams of a peer begin with, from the pieces in which they come: what is read does not depend on how they are cut.
//!
//! Less is kept than the longest header or frame, and it is copied once.

use bytes::Bytes;

use super::error_codes::{Code, Violation};
use super::framing::{split_frame, split_header};
use super::header::{Header, decode_header};

const FRAME_HELLO: u64 = 0;

/// Reads a control stream: frames one behind the other, of which one is a hello and others are skipped.
#[derive(Default)]
pub struct ControlReader {
    begun: Vec<u8>,
    greeted: bool,
}

impl ControlReader {
    /// Take a piece; `hello` is given the map of the peer's hello when that is whole.
    pub fn take(&mut self, piece: &[u8], mut hello: impl FnMut(&[u8])) -> Result<(), Violation> {
        self.begun.extend_from_slice(piece);
        let mut at = 0;
        while let Some((kind, start, end)) = split_frame(&self.begun[at..])? {
            if kind == FRAME_HELLO {
                if std::mem::replace(&mut self.greeted, true) {
                    return Err(Violation::new(Code::ProtocolViolation, "said hello twice"));
                }
                hello(&self.begun[at + start..at + end]);
            }
            at += end;
        }
        self.begun.drain(..at);
        Ok(())
    }

    /// Bytes of a frame that is not whole.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn kept(&self) -> usize {
        self.begun.len()
    }
}

/// Reads the header of a message's stream.
#[derive(Default)]
pub struct HeaderReader {
    begun: Vec<u8>,
}

impl HeaderReader {
    /// Take a piece: the header and what of the piece is behind it, or None while bytes are missing.
    pub fn take(&mut self, piece: Bytes) -> Result<Option<(Header, Bytes)>, Violation> {
        let before = self.begun.len();
        if before > 0 {
            self.begun.extend_from_slice(&piece);
        }
        let data = if before > 0 { &self.begun[..] } else { &piece[..] };
        let Some((start, end)) = split_header(data)? else {
            if before == 0 {
                self.begun = piece.to_vec();
            }
            return Ok(None);
        };
        // What came before was not whole, so the header ends in this piece.
        Ok(Some((decode_header(&data[start..end])?, piece.slice(end - before..))))
    }

    /// Bytes of a header that is not whole.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn kept(&self) -> usize {
        self.begun.len()
    }
}
