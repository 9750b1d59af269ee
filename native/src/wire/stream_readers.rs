//! What streams of a peer begin with, from the pieces in which they come: what is read does not depend on how they are cut.
//!
//! Less is kept than the longest header or frame, and it is copied once.

use bytes::Bytes;

use super::error_codes::{Code, Violation};
use super::framing::{split_frame, split_header};
use super::header::{Header, decode_header};
use super::hold::{FRAME_HOLD, Hold};

const FRAME_HELLO: u64 = 0;

/// What a frame of a control stream says.
#[derive(Debug, PartialEq, Eq)]
pub enum ControlFrame<'a> {
    /// The map of the peer's hello.
    Hello(&'a [u8]),
    Hold(Hold),
}

/// Reads a control stream: frames one behind the other, the first a hello. Those of unknown types are skipped.
#[derive(Default)]
pub struct ControlReader {
    begun: Vec<u8>,
    greeted: bool,
}

impl ControlReader {
    /// Take a piece; `hear` is given each frame when that is whole.
    pub fn take(&mut self, piece: &[u8], mut hear: impl FnMut(ControlFrame<'_>)) -> Result<(), Violation> {
        self.begun.extend_from_slice(piece);
        let mut at = 0;
        while let Some((kind, start, end)) = split_frame(&self.begun[at..])? {
            let body = &self.begun[at + start..at + end];
            let out_of_place = |what| Err(Violation::new(Code::ProtocolViolation, what));
            match kind {
                FRAME_HELLO if self.greeted => return out_of_place("said hello twice"),
                FRAME_HELLO => {
                    self.greeted = true;
                    hear(ControlFrame::Hello(body));
                }
                FRAME_HOLD if !self.greeted => return out_of_place("sent something else before its hello"),
                FRAME_HOLD => hear(ControlFrame::Hold(Hold::decode(body)?)),
                _ => {}
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
