//! A strict reader of the part of CBOR (RFC 8949) that the protocol uses.

use super::error_codes::{Violation, invalid};

/// A hello is a map of lists and maps of scalars.
const DEPTH_MAX: u32 = 3;

#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    Int(i128),
    /// What no header has: bytes, floats, true, false and null.
    Other,
    Text(&'a str),
    List(Vec<Value<'a>>),
    Map(Vec<(i128, Value<'a>)>),
}

pub(super) fn decode_map(data: &[u8]) -> Result<Vec<(i128, Value<'_>)>, Violation> {
    let mut reader = Reader { data, at: 0 };
    let Value::Map(map) = reader.value(1)? else {
        return Err(wrong(0, "not a map"));
    };
    if reader.at != data.len() {
        let left = data.len() - reader.at;
        return Err(wrong(reader.at, format!("{left} bytes after the map")));
    }
    Ok(map)
}

fn wrong(at: usize, what: impl std::fmt::Display) -> Violation {
    invalid(format!("CBOR at byte {at}: {what}"))
}

/// A strict reader of the part of CBOR (RFC 8949) that the protocol uses.
struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Violation> {
        let found = self
            .data
            .get(self.at..)
            .and_then(|rest| rest.get(..count))
            .ok_or_else(|| wrong(self.at, "truncated"))?;
        self.at += count;
        Ok(found)
    }

    fn left(&self) -> usize {
        self.data.len() - self.at
    }

    fn value(&mut self, depth: u32) -> Result<Value<'a>, Violation> {
        let began = self.at;
        let first = self.take(1)?[0];
        let (major, info) = (first >> 5, first & 0x1f);
        if major == 7 {
            return self.simple(began, info);
        }
        let argument = match info {
            0..24 => u64::from(info),
            24..=27 => self
                .take(1 << (info - 24))?
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
            _ => return Err(wrong(began, "an indefinite length or a reserved form")),
        };
        match major {
            0 => Ok(Value::Int(i128::from(argument))),
            1 => Ok(Value::Int(-1 - i128::from(argument))),
            2 | 3 => {
                if argument > self.left() as u64 {
                    let left = self.left();
                    return Err(wrong(
                        began,
                        format!("a string of {argument} bytes where {left} are left"),
                    ));
                }
                let raw = self.take(argument as usize)?;
                if major == 2 {
                    return Ok(Value::Other);
                }
                let text = std::str::from_utf8(raw).map_err(|_| wrong(began, "a text that is not UTF-8"))?;
                Ok(Value::Text(text))
            }
            6 => Err(wrong(began, "a tag; this protocol has none")),
            _ => self.container(began, major, argument, depth),
        }
    }

    fn container(&mut self, began: usize, major: u8, count: u64, depth: u32) -> Result<Value<'a>, Violation> {
        if depth > DEPTH_MAX {
            return Err(wrong(began, format!("nested deeper than {DEPTH_MAX}")));
        }
        let least = if major == 4 { count } else { count.saturating_mul(2) };
        if least > self.left() as u64 {
            let left = self.left();
            return Err(wrong(began, format!("{count} entries where {left} bytes are left")));
        }
        if major == 4 {
            let values = (0..count)
                .map(|_| self.value(depth + 1))
                .collect::<Result<_, Violation>>()?;
            return Ok(Value::List(values));
        }
        let mut seen = std::collections::HashSet::new();
        let mut entries = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let at = self.at;
            let Value::Int(key) = self.value(DEPTH_MAX + 1)? else {
                return Err(wrong(at, "a key that is not an integer"));
            };
            if !seen.insert(key) {
                return Err(wrong(at, format!("key {key} twice")));
            }
            entries.push((key, self.value(depth + 1)?));
        }
        Ok(Value::Map(entries))
    }

    fn simple(&mut self, began: usize, info: u8) -> Result<Value<'a>, Violation> {
        match info {
            20..=22 => Ok(Value::Other),
            25..=27 => {
                self.take(1 << (info - 24))?;
                Ok(Value::Other)
            }
            _ => Err(wrong(began, "a simple value that this protocol does not use")),
        }
    }
}
