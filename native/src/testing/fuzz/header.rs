//! What a peer sends that Rust takes apart: integers, the prefix and the map of a header, frames of the control stream.
//!
//! Whatever comes is read within its bounds or refused with a code, says the same however it is cut, and is never
//! answered with more memory than it has bytes for.

use crate::wire::{Code, HEADER_BYTES_MAX, Violation, decode_header, decode_varint, split_frame, split_header};

pub fn run(data: &[u8]) {
    integer(data);
    frames(data);
    stream(data);
    map(data); // without the prefix, which a fuzzer has to get right first
}

fn integer(data: &[u8]) {
    if let Some((value, length)) = decode_varint(data) {
        assert!(value < 1 << 62 && length <= data.len() && matches!(length, 1 | 2 | 4 | 8));
        assert_eq!(decode_varint(&data[..length]), Some((value, length)));
        assert_eq!(decode_varint(&data[..length - 1]), None);
    } else {
        assert!(data.len() < 8);
    }
}

fn frames(data: &[u8]) {
    let mut at = 0;
    while let Ok(Some((_, start, end))) = split_frame(&data[at..]) {
        assert!(start >= 2 && start <= end && end <= data.len() - at && end - start <= HEADER_BYTES_MAX);
        at += end;
    }
    if let Err(refused) = split_frame(&data[at..]) {
        assert_eq!(refused.code, Code::ProtocolViolation);
    }
}

fn stream(data: &[u8]) {
    match split_header(data) {
        Ok(Some((start, end))) => {
            assert!(start < end && end <= data.len() && end - start <= HEADER_BYTES_MAX);
            assert_eq!(split_header(&data[..end]), Ok(Some((start, end))));
            assert_eq!(split_header(&data[..end - 1]), Ok(None), "one byte less is not whole");
            map(&data[start..end]);
        }
        Ok(None) => assert!(
            data.len() < HEADER_BYTES_MAX + 8,
            "nobody waits for more than a header may have"
        ),
        Err(refused) => assert!(matches!(refused.code, Code::HeaderInvalid | Code::HeaderTooLarge)),
    }
}

fn map(body: &[u8]) {
    match decode_header(body) {
        Ok(header) => {
            let key = &header.key;
            assert!(body.len() <= HEADER_BYTES_MAX && key.kind <= 3);
            assert!(
                [&key.group, &header.job, &header.call]
                    .iter()
                    .all(|text| text.len() <= 128)
            );
            assert!(header.shape.len() <= 32);
            assert!(header.dtype.len() <= 15);
            if !header.shape.is_empty() && !header.shape.contains(&0) {
                let items = header
                    .shape
                    .iter()
                    .try_fold(1u64, |product, size| product.checked_mul(*size));
                assert!(items.is_some_and(|items| header.length % items == 0));
            }
        }
        Err(Violation { code, reason }) => {
            assert!((0x11..=0x16).contains(&(code as u32)), "{reason}");
            assert!(reason.len() < 2048, "a reason is for people");
        }
    }
}
