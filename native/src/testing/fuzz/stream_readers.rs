//! The beginnings of a peer's streams, in pieces of any size.
//!
//! However a stream is cut, the same is read from it, and refused at the same place with the same words; no more is
//! kept than the longest header or frame; and what stands behind a header is handed on as it came.
//!
//! Input: a byte that says which kind of stream it is (0: a control stream, else a message's), one that says how it is
//! cut, and the stream.

use bytes::Bytes;

use crate::wire::{
    Code, ControlFrame, ControlReader, HEADER_BYTES_MAX, Header, HeaderReader, Hold, Violation, decode_header,
    split_frame, split_header,
};

/// Of an integer in front of a header or a frame (RFC 9000 16).
const INTEGER_BYTES_MAX: usize = 8;

pub fn run(data: &[u8]) {
    let [kind, cuts, stream @ ..] = data else {
        return;
    };
    match kind {
        0 => control(stream, *cuts),
        _ => message(stream, *cuts),
    }
}

/// Pieces of 1 byte or more, as long as the stream lasts.
fn pieces(stream: &[u8], cuts: u8) -> impl Iterator<Item = &[u8]> {
    let mut state = u64::from(cuts) | 1 << 32;
    let mut rest = stream;
    std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let most = 1 << (state >> 32 & 7).min(u64::from(cuts) >> 5); // some streams come byte by byte
        let length = (1 + state as usize % most).min(rest.len());
        let (piece, behind) = rest.split_at(length);
        rest = behind;
        (length > 0).then_some(piece)
    })
}

fn control(stream: &[u8], cuts: u8) {
    let mut expected = (Vec::new(), Vec::new());
    let refused = all_at_once(stream, &mut expected.0, &mut expected.1);
    let mut reader = ControlReader::default();
    let (mut hellos, mut holds) = (Vec::new(), Vec::new());
    let mut told = Ok(());
    for piece in pieces(stream, cuts) {
        told = reader.take(piece, |frame| match frame {
            ControlFrame::Hello(hello) => hellos.push(hello.to_vec()),
            ControlFrame::Hold(hold) => holds.push(hold),
        });
        if told.is_err() {
            break; // and the connection is closed
        }
        assert!(reader.kept() < HEADER_BYTES_MAX + 2 * INTEGER_BYTES_MAX);
    }
    assert_eq!(told.err(), refused);
    assert_eq!((hellos, holds), expected);
}

/// What a control stream says, read from all of it.
fn all_at_once(stream: &[u8], hellos: &mut Vec<Vec<u8>>, holds: &mut Vec<Hold>) -> Option<Violation> {
    let mut at = 0;
    loop {
        match split_frame(&stream[at..]) {
            Ok(Some((kind, start, end))) => {
                if kind == 0 && !hellos.is_empty() {
                    return Some(Violation::new(Code::ProtocolViolation, "said hello twice"));
                }
                if kind == 1 && hellos.is_empty() {
                    let reason = "sent something else before its hello";
                    return Some(Violation::new(Code::ProtocolViolation, reason));
                }
                match (kind, Hold::decode(&stream[at + start..at + end])) {
                    (1, Ok(hold)) => holds.push(hold),
                    (1, Err(violation)) => return Some(violation),
                    _ => {}
                }
                if kind == 0 {
                    hellos.push(stream[at + start..at + end].to_vec());
                }
                at += end;
            }
            Ok(None) => return None,
            Err(violation) => return Some(violation),
        }
    }
}

fn message(stream: &[u8], cuts: u8) {
    let expected: Result<Option<(Header, usize)>, Violation> = split_header(stream).and_then(|found| match found {
        Some((start, end)) => Ok(Some((decode_header(&stream[start..end])?, end))),
        None => Ok(None),
    });
    let mut reader = HeaderReader::default();
    let mut at = 0;
    for piece in pieces(stream, cuts) {
        at += piece.len();
        match reader.take(Bytes::copy_from_slice(piece)) {
            Ok(None) => assert!(reader.kept() == at && at < HEADER_BYTES_MAX + INTEGER_BYTES_MAX),
            Ok(Some((header, first))) => {
                let (wanted, end) = expected.expect("it was not refused").expect("it is whole");
                assert_eq!(header, wanted);
                assert_eq!(first, stream[end..at]);
                return;
            }
            Err(violation) => return assert_eq!(Some(violation), expected.err()),
        }
    }
    assert_eq!(expected, Ok(None));
}
