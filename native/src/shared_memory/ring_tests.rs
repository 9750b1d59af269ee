use std::thread;

use super::*;

fn ring() -> (Arc<Region>, Writer, Reader) {
    let region = Arc::new(Region::create().unwrap().0);
    let writer = Writer::new(region.clone(), Side::Dialler);
    let reader = Reader::new(region.clone(), Side::Dialler);
    (region, writer, reader)
}

/// The bytes of a message, which differ from those beside them.
fn content(message: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (message * 31 + at / 7) as u8).collect()
}

fn take(reader: &mut Reader) -> Option<(Kind, u64, Vec<u8>)> {
    let frame = reader.front().unwrap()?;
    let taken = (frame.kind, frame.message, reader.content(frame).concat());
    reader.release(frame);
    Some(taken)
}

#[test]
fn frames_of_all_lengths_come_as_they_were_written_however_often_the_ring_wraps_around() {
    let (_region, mut writer, mut reader) = ring();
    let lengths: Vec<usize> = (0..600)
        .map(|i| [0, 1, 15, 16, 17, 100_003, 65536][i % 7] + i)
        .collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for (message, length) in lengths.iter().enumerate() {
                while writer.room().unwrap() < frame_bytes(*length) {
                    thread::yield_now();
                }
                writer.push(Kind::Data, message as u64, &content(message as u64, *length));
                writer.publish();
            }
        });
        for (message, length) in lengths.iter().enumerate() {
            let taken = loop {
                match take(&mut reader) {
                    Some(taken) => break taken,
                    None => thread::yield_now(),
                }
            };
            let message = message as u64;
            assert!(
                taken == (Kind::Data, message, content(message, *length)),
                "message {message}"
            );
        }
    });
    assert!(lengths.iter().sum::<usize>() > 3 * RING_BYTES);
}

#[test]
fn a_full_ring_has_no_room_and_an_unpublished_frame_is_not_seen() {
    let (_region, mut writer, mut reader) = ring();
    let half = vec![7; RING_BYTES / 2 - UNIT_BYTES];
    writer.push(Kind::Data, 0, &half);
    assert!(!reader.some() && take(&mut reader).is_none());
    writer.push(Kind::Data, 1, &half);
    writer.publish();
    assert_eq!(writer.room().unwrap(), 0);
    assert_eq!(take(&mut reader).unwrap().1, 0);
    assert_eq!(writer.room().unwrap(), RING_BYTES / 2);
    assert_eq!(writer.tail().unwrap(), writer.head() / 2);
}

#[test]
fn heads_and_tails_that_cannot_be_are_refused() {
    let lies = [UNIT_BYTES as u64 + 1, RING + UNIT_BYTES as u64, u64::MAX - 15, 1 << 63];
    for lie in lies {
        let (region, mut writer, mut reader) = ring();
        region.word(Side::Dialler, Word::Head).store(lie, SeqCst);
        assert_eq!(reader.front().unwrap_err().code, Code::ProtocolViolation);
        region.word(Side::Dialled, Word::Tail).store(lie, SeqCst);
        assert_eq!(writer.room().unwrap_err().code, Code::ProtocolViolation);
    }
    let (region, mut writer, mut reader) = ring();
    writer.push(Kind::Data, 0, &[1; 100]);
    writer.publish();
    take(&mut reader).unwrap();
    assert_eq!(writer.room().unwrap(), RING_BYTES);
    region.word(Side::Dialler, Word::Head).store(0, SeqCst);
    assert!(reader.front().is_err(), "a head that goes back");
    region.word(Side::Dialled, Word::Tail).store(0, SeqCst);
    assert!(writer.room().is_err(), "a tail that goes back");
}

#[test]
fn a_frame_that_ends_behind_the_head_or_is_of_no_kind_is_refused() {
    for (at, number) in [
        (0, 85),
        (0, u32::MAX),
        (0, RING_BYTES as u32),
        (4, 0),
        (4, 6),
        (4, u32::MAX),
    ] {
        let (region, mut writer, mut reader) = ring();
        writer.push(Kind::Data, 0, &[1; 70]);
        writer.publish();
        // SAFETY: within the ring.
        unsafe { region.ring(Side::Dialler).add(at).cast::<u32>().write_unaligned(number) };
        assert_eq!(
            reader.front().unwrap_err().code,
            Code::ProtocolViolation,
            "{number} at {at}"
        );
    }
}
