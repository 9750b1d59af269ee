//! The protocol's test vectors, its table of codes in `docs/reference/wire.md`, and bytes that are spoiled.

use bytes::Bytes;

use super::cbor::decode_map;
use super::header::{DIMENSIONS_MAX, NAME_BYTES_MAX};
use super::*;

const PROTOCOL: &str = include_str!("../../../docs/reference/wire.md");
const VECTORS: &str = include_str!("../../../docs/reference/wire-vectors.jsonl");

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
    let found: Vec<_> = VECTORS.lines().filter(|line| line.starts_with(&prefix)).collect();
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

#[test]
fn the_protocols_codes_are_these_and_no_others() {
    let rows = PROTOCOL
        .lines()
        .filter_map(|line| line.strip_prefix("| 0x")?.split_once(" | "));
    let mut codes = 0;
    for (number, rest) in rows {
        let name = rest.split(" | ").next().unwrap();
        let code = u64::from_str_radix(number, 16).unwrap();
        assert_eq!(code_name(code), format!("{name} (0x{number})"));
        codes += 1;
    }
    assert_eq!(codes, (0..256).filter(|code| code_name(*code).contains('(')).count());
}

#[test]
fn streams_are_read_alike_however_they_are_cut() {
    let behind = [7; 10];
    for line in vectors("header") {
        let stream = [&bytes_of(field(line, "wire"))[..], &behind].concat();
        for size in 1..=stream.len() {
            let mut reader = HeaderReader::default();
            let mut at = 0;
            let (_, first) = stream
                .chunks(size)
                .find_map(|piece| {
                    at += piece.len();
                    reader.take(Bytes::copy_from_slice(piece)).unwrap()
                })
                .unwrap();
            assert_eq!(first, behind[..behind.len() + at - stream.len()], "{size}: {line}");
        }
    }
    let wire = bytes_of(field(vectors("control")[0], "wire"));
    let (_, start, end) = split_frame(&wire).unwrap().unwrap();
    let stream = [&[33, 3, 1, 2, 3], &wire[..], &[33]].concat();
    for size in 1..=stream.len() {
        let (mut reader, mut hellos) = (ControlReader::default(), Vec::new());
        for piece in stream.chunks(size) {
            reader
                .take(piece, |frame| match frame {
                    ControlFrame::Hello(hello) => hellos.push(hello.to_vec()),
                    ControlFrame::Hold(_) => panic!("nobody said that"),
                })
                .unwrap();
        }
        assert_eq!((hellos, reader.kept()), (vec![wire[start..end].to_vec()], 1));
        let twice = reader.take(&[&[0], &wire[..]].concat(), |_| panic!("it is refused"));
        assert_eq!(twice.unwrap_err().code, Code::ProtocolViolation);
    }
}

#[test]
fn a_hold_is_read_as_it_was_written_and_comes_behind_a_hello() {
    for (group, step, waits) in [("", 0, false), ("g", 7, true), (&"é".repeat(64)[..], u64::MAX, true)] {
        let group = group.to_owned();
        let hold = Hold { group, step, waits };
        let mut reader = ControlReader::default();
        let refused = reader.take(&hold.frame(), |_| panic!("it is out of place"));
        assert_eq!(refused.unwrap_err().code, Code::ProtocolViolation);
        let (mut reader, mut heard) = (ControlReader::default(), Vec::new());
        reader.take(&[0, 1, 0xa0], |_| {}).unwrap();
        let hear = |frame: ControlFrame<'_>| {
            heard.extend(match frame {
                ControlFrame::Hold(hold) => Some(hold),
                ControlFrame::Hello(_) => None,
            })
        };
        reader.take(&hold.frame(), hear).unwrap();
        assert_eq!(heard, [hold]);
    }
    let (group, step, waits) = ("grads".to_owned(), 7, true);
    let wire = bytes_of(field(vectors("control")[1], "wire"));
    assert_eq!(Hold { group, step, waits }.frame(), wire);
    for wrong in [&[0xa1, 2, 2][..], &[0xa1, 0, 1], &[0xa1, 1, 0x20], &[0x80]] {
        let frame = [&[0, 1, 0xa0, 1, wrong.len() as u8], wrong].concat();
        let refused = ControlReader::default().take(&frame, |_| {});
        assert_eq!(refused.unwrap_err().code, Code::HeaderInvalid, "{wrong:?}");
    }
}
