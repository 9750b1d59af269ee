//! A header as it goes on the wire: what `transport.wire.header.encode_header` writes for all that messages ordinarily say.

use super::header::{Header, decode_header};

const UNSIGNED: u8 = 0;
const TEXT: u8 = 3;
const LIST: u8 = 4;
const MAP: u8 = 5;

/// A varint and the map in the deterministic form of RFC 8949 4.2, defaults left out. None where a reader would refuse it:
/// then Python's writer says what is wrong.
pub fn encode_header(header: &Header) -> Option<Vec<u8>> {
    let mut map = Map::default();
    let key = &header.key;
    map.int(0, u64::from(key.kind));
    for (number, text) in [(1, &header.job), (2, &key.group)] {
        map.some(number, text);
    }
    for (number, value) in [(4, key.step), (5, key.bucket), (7, key.tag)] {
        if value != 0 {
            map.int(number, value);
        }
    }
    map.some(8, &header.dtype);
    if !header.shape.is_empty() {
        map.key(9);
        put(&mut map.fields, LIST, header.shape.len() as u64);
        for size in &header.shape {
            put(&mut map.fields, UNSIGNED, *size);
        }
    }
    map.int(11, header.length);
    map.some(14, &header.call);

    let body = map.body();
    if !decode_header(&body).is_ok_and(|read| read == *header) {
        return None;
    }
    Some(behind_its_length(&body)) // as `decode_header` has checked
}

/// Of at most `HEADER_BYTES_MAX`.
pub(super) fn behind_its_length(body: &[u8]) -> Vec<u8> {
    let length = body.len() as u16;
    let mut written = if length < 0x40 {
        vec![length as u8]
    } else {
        (0x4000 | length).to_be_bytes().to_vec()
    };
    written.extend_from_slice(body);
    written
}

/// The fields of a map, whose keys come in their order and are less than 24.
#[derive(Default)]
pub(super) struct Map {
    count: u64,
    fields: Vec<u8>,
}

impl Map {
    /// The map as it is written.
    pub(super) fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(1 + self.fields.len());
        put(&mut body, MAP, self.count);
        body.extend_from_slice(&self.fields);
        body
    }

    fn key(&mut self, number: u8) {
        self.count += 1;
        put(&mut self.fields, UNSIGNED, u64::from(number));
    }

    pub(super) fn int(&mut self, number: u8, value: u64) {
        self.key(number);
        put(&mut self.fields, UNSIGNED, value);
    }

    /// A text, where it is not empty.
    pub(super) fn some(&mut self, number: u8, text: &str) {
        if !text.is_empty() {
            self.key(number);
            put(&mut self.fields, TEXT, text.len() as u64);
            self.fields.extend_from_slice(text.as_bytes());
        }
    }
}

/// Write a type and its argument, as short as it can be.
fn put(out: &mut Vec<u8>, major: u8, argument: u64) {
    let major = major << 5;
    match argument {
        0..24 => out.push(major | argument as u8),
        24..0x100 => out.extend([major | 24, argument as u8]),
        0x100..0x1_0000 => {
            out.push(major | 25);
            out.extend((argument as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend((argument as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend(argument.to_be_bytes());
        }
    }
}
