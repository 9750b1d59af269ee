//! What a message says of itself, in a map whose every field has its bounds.

use super::cbor::{Value, decode_map};
use super::error_codes::{Code, Violation, invalid};
use super::framing::HEADER_BYTES_MAX;

/// Of `job`, `group` and `call`, in UTF-8.
pub(super) const NAME_BYTES_MAX: usize = 128;
pub(super) const DIMENSIONS_MAX: usize = 32;

/// Kinds of messages (`docs/reference/wire.md`).
pub const KIND_CONTROL: u8 = 0;
pub const KIND_COLLECTIVE: u8 = 1;

/// What a message is matched by, together with the peer that sent it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub kind: u8,
    pub group: String,
    pub step: u64,
    pub bucket: u64,
    pub tag: u64,
}

/// What a message says of itself; every field is within its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub key: Key,
    pub job: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub length: u64,
    pub call: String,
}

/// Read a header's CBOR map.
pub fn decode_header(body: &[u8]) -> Result<Header, Violation> {
    if body.len() > HEADER_BYTES_MAX {
        let reason = format!("a header of {} bytes; {HEADER_BYTES_MAX} are allowed", body.len());
        return Err(Violation::new(Code::HeaderTooLarge, reason));
    }
    let mut fields = Fields(decode_map(body)?);
    let Some(kind) = fields.take(0) else {
        return Err(invalid("a header without kind or length"));
    };
    let Some(length) = fields.take(11) else {
        return Err(invalid("a header without kind or length"));
    };
    let Value::Int(kind) = kind else {
        return Err(invalid("kind is not of type int"));
    };
    if !(0..=3).contains(&kind) {
        return Err(invalid(format!("kind {kind} is not defined")));
    }
    let shape = fields.list(9, "shape")?;
    let (job, group, call) = (
        fields.text(1, "job")?,
        fields.text(2, "group")?,
        fields.text(14, "call")?,
    );
    let (step, bucket, tag) = (fields.int(4, "step")?, fields.int(5, "bucket")?, fields.int(7, "tag")?);
    let dtype = fields.text(8, "dtype")?;
    let Value::Int(length) = length else {
        return Err(invalid("length is not of type int"));
    };
    for (name, text) in [("job", &job), ("group", &group), ("call", &call)] {
        if text.len() > NAME_BYTES_MAX {
            return Err(invalid(format!("{name} is longer than {NAME_BYTES_MAX} bytes")));
        }
    }
    let key = Key {
        kind: kind as u8,
        group: group.to_owned(),
        step: unsigned(step, "step")?,
        bucket: unsigned(bucket, "bucket")?,
        tag: unsigned(tag, "tag")?,
    };
    let length = unsigned(length, "length")?;
    if shape.len() > DIMENSIONS_MAX {
        return Err(invalid(format!(
            "{} dimensions; {DIMENSIONS_MAX} are allowed",
            shape.len()
        )));
    }
    let shape = shape
        .into_iter()
        .map(|size| unsigned(size, "a dimension"))
        .collect::<Result<Vec<u64>, Violation>>()?;
    check_length(dtype, &shape, length)?;
    Ok(Header {
        key,
        job: job.to_owned(),
        dtype: dtype.to_owned(),
        shape,
        length,
        call: call.to_owned(),
    })
}

fn check_length(dtype: &str, shape: &[u64], length: u64) -> Result<(), Violation> {
    let item = match dtype {
        "" | "bool" | "uint8" | "int8" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2" | "float8_e5m2fnuz"
        | "float8_e8m0fnu" => 1,
        "uint16" | "int16" | "float16" | "bfloat16" => 2,
        "uint32" | "int32" | "float32" | "complex32" => 4,
        "uint64" | "int64" | "float64" | "complex64" => 8,
        "complex128" => 16,
        _ => {
            let reason = format!("dtype {:?} is not defined", dtype.chars().take(32).collect::<String>());
            return Err(Violation::new(Code::DtypeUnknown, reason));
        }
    };
    if dtype.is_empty() && shape.is_empty() {
        return Ok(());
    }
    // A zero among the dimensions makes the product zero, however large the others are.
    let wanted = if shape.contains(&0) {
        Some(0)
    } else {
        shape
            .iter()
            .try_fold(item, |product: u64, size| product.checked_mul(*size))
    };
    if wanted != Some(length) {
        let name = if dtype.is_empty() { "bytes" } else { dtype };
        let size = wanted.map_or("more than 64 bits of".to_owned(), |bytes| bytes.to_string());
        let reason = format!("shape {shape:?} of {name} is {size} bytes, length says {length}");
        return Err(Violation::new(Code::LengthMismatch, reason));
    }
    Ok(())
}

pub(super) fn unsigned(value: i128, name: &str) -> Result<u64, Violation> {
    u64::try_from(value).map_err(|_| invalid(format!("{name} is not an unsigned 64-bit integer")))
}

pub(super) struct Fields<'a>(pub(super) Vec<(i128, Value<'a>)>);

impl<'a> Fields<'a> {
    fn take(&mut self, key: i128) -> Option<Value<'a>> {
        let at = self.0.iter().position(|(found, _)| *found == key)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(super) fn text(&mut self, key: i128, name: &str) -> Result<&'a str, Violation> {
        match self.take(key) {
            None => Ok(""),
            Some(Value::Text(text)) => Ok(text),
            Some(_) => Err(invalid(format!("{name} is not of type str"))),
        }
    }

    pub(super) fn int(&mut self, key: i128, name: &str) -> Result<i128, Violation> {
        match self.take(key) {
            None => Ok(0),
            Some(Value::Int(number)) => Ok(number),
            Some(_) => Err(invalid(format!("{name} is not of type int"))),
        }
    }

    fn list(&mut self, key: i128, name: &str) -> Result<Vec<i128>, Violation> {
        let values = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(Value::List(values)) => values,
            Some(_) => return Err(invalid(format!("{name} is not of type list"))),
        };
        values
            .into_iter()
            .map(|value| match value {
                Value::Int(number) => Ok(number),
                _ => Err(invalid(format!("a {name} of something else than integers"))),
            })
            .collect()
    }
}
