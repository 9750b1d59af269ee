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

    let mut body = Vec::with_capacity(1 + map.fields.len());
    put(&mut body, MAP, map.count);
    body.append(&mut map.fields);
    if !decode_header(&body).is_ok_and(|read| read == *header) {
        return None;
    }
    let length = body.len() as u16; // as `decode_header` has checked
    let mut written = if length < 0x40 {
        vec![length as u8]
    } else {
        (0x4000 | length).to_be_bytes().to_vec()
    };
    written.append(&mut body);
    Some(written)
}

/// The fields of a map, whose keys come in their order and are less than 24.
#[derive(Default)]
struct Map {
    count: u64,
    fields: Vec<u8>,
}

impl Map {
    fn key(&mut self, number: u8) {
        self.count += 1;
        put(&mut self.fields, UNSIGNED, u64::from(number));
    }

    fn int(&mut self, number: u8, value: u64) {
        self.key(number);
        put(&mut self.fields, UNSIGNED, value);
    }

    /// A text, where it is not empty.
    fn some(&mut self, number: u8, text: &str) {
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
