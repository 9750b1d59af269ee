//! Bytes of `hive-tensor/1` as `docs/wire-protocol.md` defines them: integers, the strict CBOR reader, message headers.
//!
//! Whatever a peer sends passes through here: every length is held against what is left of the input before anything
//! of that size exists, and the same limits and codes hold as in `transport/wire`.

/// Longest header or control frame.
pub const HEADER_BYTES_MAX: usize = 4096;
/// Of `job`, `group` and `call`, in UTF-8.
const NAME_BYTES_MAX: usize = 128;
const DIMENSIONS_MAX: usize = 32;
const CONTRIBUTORS_BYTES_MAX: usize = 1024;
/// A hello is a map of lists and maps of scalars.
const DEPTH_MAX: u32 = 3;

/// Application error codes of CONNECTION_CLOSE, RESET_STREAM and STOP_SENDING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    NoError = 0x00,
    Internal = 0x01,
    ProtocolViolation = 0x10,
    HeaderInvalid = 0x11,
    HeaderTooLarge = 0x12,
    VersionUnsupported = 0x13,
    DtypeUnknown = 0x14,
    LengthMismatch = 0x15,
    MessageTooLong = 0x16,
    CodecUnknown = 0x17,
    HelloInvalid = 0x18,
    CertificateMissing = 0x20,
    CertificateUntrusted = 0x21,
    CertificateExpired = 0x22,
    RoleRefused = 0x23,
    PeerUnexpected = 0x24,
    JobMismatch = 0x25,
    Cancelled = 0x30,
    DeadlinePassed = 0x31,
    Discarded = 0x32,
    BufferTooSmall = 0x33,
    TooManyConnections = 0x40,
    HandshakeTimeout = 0x41,
    Dead = 0x42,
    CountedAsGone = 0x43,
}

/// The name of an application error code, for people.
pub fn code_name(code: u64) -> String {
    const NAMES: [(u64, &str); 25] = [
        (0x00, "NO_ERROR"),
        (0x01, "INTERNAL"),
        (0x10, "PROTOCOL_VIOLATION"),
        (0x11, "HEADER_INVALID"),
        (0x12, "HEADER_TOO_LARGE"),
        (0x13, "VERSION_UNSUPPORTED"),
        (0x14, "DTYPE_UNKNOWN"),
        (0x15, "LENGTH_MISMATCH"),
        (0x16, "MESSAGE_TOO_LONG"),
        (0x17, "CODEC_UNKNOWN"),
        (0x18, "HELLO_INVALID"),
        (0x20, "CERTIFICATE_MISSING"),
        (0x21, "CERTIFICATE_UNTRUSTED"),
        (0x22, "CERTIFICATE_EXPIRED"),
        (0x23, "ROLE_REFUSED"),
        (0x24, "PEER_UNEXPECTED"),
        (0x25, "JOB_MISMATCH"),
        (0x30, "CANCELLED"),
        (0x31, "DEADLINE_PASSED"),
        (0x32, "DISCARDED"),
        (0x33, "BUFFER_TOO_SMALL"),
        (0x40, "TOO_MANY_CONNECTIONS"),
        (0x41, "HANDSHAKE_TIMEOUT"),
        (0x42, "DEAD"),
        (0x43, "COUNTED_AS_GONE"),
    ];
    match NAMES.iter().find(|(number, _)| *number == code) {
        Some((_, name)) => format!("{name} (0x{code:02x})"),
        None => format!("0x{code:02x}"),
    }
}

/// Bytes from a peer that break the protocol: what to close the connection with, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub code: Code,
    pub reason: String,
}

impl Violation {
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }
}

fn invalid(reason: impl Into<String>) -> Violation {
    Violation::new(Code::HeaderInvalid, reason)
}

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

/// What a message is matched by, together with the peer that sent it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub kind: u8,
    pub group: String,
    pub step: u64,
    pub bucket: u64,
    pub attempt: u64,
    pub epoch: u64,
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
    pub weight: f64,
    pub contributors: Vec<u8>,
    pub call: String,
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
    let weight = match fields.take(12) {
        None => 1.0,
        Some(Value::Float(number)) => number,
        Some(Value::Int(number)) => number as f64,
        Some(_) => return Err(invalid("weight is not a number")),
    };
    let (job, group, call) = (
        fields.text(1, "job")?,
        fields.text(2, "group")?,
        fields.text(14, "call")?,
    );
    let (epoch, step, bucket, attempt, tag) = (
        fields.int(3, "epoch")?,
        fields.int(4, "step")?,
        fields.int(5, "bucket")?,
        fields.int(6, "attempt")?,
        fields.int(7, "tag")?,
    );
    let dtype = fields.text(8, "dtype")?;
    let codec = fields.int(10, "codec")?;
    let Value::Int(length) = length else {
        return Err(invalid("length is not of type int"));
    };
    let contributors = match fields.take(13) {
        None => Vec::new(),
        Some(Value::Bytes(bytes)) => bytes.to_vec(),
        Some(_) => return Err(invalid("contributors is not of type bytes")),
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
        attempt: unsigned(attempt, "attempt")?,
        epoch: unsigned(epoch, "epoch")?,
        tag: unsigned(tag, "tag")?,
    };
    let length = unsigned(length, "length")?;
    if !(weight.is_finite() && weight >= 0.0) {
        return Err(invalid("weight is not a finite number of at least 0"));
    }
    if contributors.len() > CONTRIBUTORS_BYTES_MAX {
        return Err(invalid(format!(
            "contributors is longer than {CONTRIBUTORS_BYTES_MAX} bytes"
        )));
    }
    if codec != 0 {
        return Err(Violation::new(
            Code::CodecUnknown,
            format!("codec {codec} is not defined"),
        ));
    }
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
        weight,
        contributors,
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

fn unsigned(value: i128, name: &str) -> Result<u64, Violation> {
    u64::try_from(value).map_err(|_| invalid(format!("{name} is not an unsigned 64-bit integer")))
}

struct Fields<'a>(Vec<(i128, Value<'a>)>);

impl<'a> Fields<'a> {
    fn take(&mut self, key: i128) -> Option<Value<'a>> {
        let at = self.0.iter().position(|(found, _)| *found == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn text(&mut self, key: i128, name: &str) -> Result<&'a str, Violation> {
        match self.take(key) {
            None => Ok(""),
            Some(Value::Text(text)) => Ok(text),
            Some(_) => Err(invalid(format!("{name} is not of type str"))),
        }
    }

    fn int(&mut self, key: i128, name: &str) -> Result<i128, Violation> {
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

#[derive(Debug, PartialEq)]
enum Value<'a> {
    Int(i128),
    Float(f64),
    Other,
    Bytes(&'a [u8]),
    Text(&'a str),
    List(Vec<Value<'a>>),
    Map(Vec<(i128, Value<'a>)>),
}

fn decode_map(data: &[u8]) -> Result<Vec<(i128, Value<'_>)>, Violation> {
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
                    return Ok(Value::Bytes(raw));
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
            25 => {
                let raw = self.take(2)?;
                Ok(Value::Float(half(u16::from_be_bytes([raw[0], raw[1]]))))
            }
            26 => {
                let raw: [u8; 4] = self.take(4)?.try_into().expect("four bytes were taken");
                Ok(Value::Float(f64::from(f32::from_be_bytes(raw))))
            }
            27 => {
                let raw: [u8; 8] = self.take(8)?.try_into().expect("eight bytes were taken");
                Ok(Value::Float(f64::from_be_bytes(raw)))
            }
            _ => Err(wrong(began, "a simple value that this protocol does not use")),
        }
    }
}

/// A half-precision number (IEEE 754 binary16) as RFC 8949, appendix D, decodes it.
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = ((bits >> 10) & 0x1f, f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (mantissa + 1024.0) * 2f64.powi(i32::from(exponent) - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOL: &str = include_str!("../../docs/wire-protocol.md");

    /// A field of a line of test vectors, as it stands there.
    fn field<'a>(line: &'a str, name: &str) -> &'a str {
        let at = line
            .find(&format!("\"{name}\": "))
            .unwrap_or_else(|| panic!("no {name} in {line}"));
        let rest = &line[at + name.len() + 4..];
        match rest.strip_prefix('"') {
            Some(text) => &text[..text.find('"').unwrap()],
            None => &rest[..rest.find([',', '}']).unwrap()],
        }
    }

    fn bytes_of(hexadecimal: &str) -> Vec<u8> {
        (0..hexadecimal.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap())
            .collect()
    }

    fn vectors(kind: &str) -> Vec<&'static str> {
        let prefix = format!("{{\"kind\": \"{kind}\"");
        let found: Vec<_> = PROTOCOL.lines().filter(|line| line.starts_with(&prefix)).collect();
        assert!(!found.is_empty(), "no vectors of {kind}");
        found
    }

    #[test]
    fn the_protocols_integers_are_read() {
        for line in vectors("varint") {
            let wire = bytes_of(field(line, "wire"));
            let value = field(line, "value").parse().unwrap();
            assert_eq!(decode_varint(&wire), Some((value, wire.len())), "{line}");
            assert_eq!(decode_varint(&wire[..wire.len() - 1]), None, "{line}");
        }
    }

    #[test]
    fn the_protocols_headers_are_read() {
        for line in vectors("header") {
            let wire = bytes_of(field(line, "wire"));
            let (start, end) = split_header(&wire).unwrap().unwrap();
            assert_eq!(end, wire.len());
            let header = decode_header(&wire[start..end]).unwrap_or_else(|error| panic!("{error:?}: {line}"));
            let value = &line[line.find("\"value\": ").unwrap() + 9..];
            let number = |name: &str| {
                let found = value.contains(&format!("\"{name}\": "));
                if found { field(value, name).parse().unwrap() } else { 0 }
            };
            let text = |name: &str| {
                let found = value.contains(&format!("\"{name}\": "));
                if found { field(value, name) } else { "" }
            };
            let key = Key {
                kind: field(value, "kind").parse().unwrap(),
                group: text("group").to_owned(),
                step: number("step"),
                bucket: number("bucket"),
                attempt: number("attempt"),
                epoch: number("epoch"),
                tag: number("tag"),
            };
            assert_eq!(header.key, key, "{line}");
            assert_eq!(
                (header.job.as_str(), header.dtype.as_str()),
                (text("job"), text("dtype")),
                "{line}"
            );
            assert_eq!(
                (header.call.as_str(), header.length),
                (text("call"), number("length")),
                "{line}"
            );
            assert_eq!(header.contributors, bytes_of(text("contributors")), "{line}");
            for cut in 0..wire.len() {
                assert_eq!(split_header(&wire[..cut]), Ok(None), "{line}");
            }
        }
    }

    #[test]
    fn the_protocols_bad_headers_are_refused_with_their_codes() {
        for line in vectors("bad-header") {
            let refused = decode_header(&bytes_of(field(line, "wire"))).expect_err(line);
            assert_eq!(
                (refused.code as u32).to_string(),
                field(line, "code"),
                "{line}: {refused:?}"
            );
        }
    }

    #[test]
    fn the_protocols_frames_are_cut() {
        for line in vectors("control") {
            let wire = bytes_of(field(line, "wire"));
            let (kind, start, end) = split_frame(&wire).unwrap().unwrap();
            assert_eq!(
                (kind, end),
                (field(line, "type").parse().unwrap(), wire.len()),
                "{line}"
            );
            decode_map(&wire[start..end]).unwrap();
            assert_eq!(split_frame(&wire[..end - 1]), Ok(None));
        }
        assert_eq!(split_frame(&[0, 0x53, 0x88]).unwrap_err().code, Code::ProtocolViolation);
    }

    /// Whatever comes, reading it ends in a value within its bounds or in an error; the seed is fixed.
    #[test]
    fn spoiled_headers_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let whole: Vec<Vec<u8>> = vectors("header")
            .iter()
            .map(|line| bytes_of(field(line, "wire")))
            .collect();
        for _ in 0..200_000 {
            let mut data = whole[random() as usize % whole.len()].clone();
            for _ in 0..1 + random() % 4 {
                let at = random() as usize % data.len();
                data[at] = random() as u8;
            }
            data.truncate(1 + random() as usize % data.len());
            let _ = split_frame(&data);
            if let Ok(Some((start, end))) = split_header(&data)
                && let Ok(header) = decode_header(&data[start..end])
            {
                assert!(header.key.kind <= 3 && header.shape.len() <= DIMENSIONS_MAX);
                assert!(header.key.group.len() <= NAME_BYTES_MAX);
            }
        }
    }
}
