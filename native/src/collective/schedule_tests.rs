//! Schedules that are right, wrong in one place, and wrong anywhere.

use super::*;

const BUFFERS: [Extent; 2] = [
    Extent {
        length: 64,
        writable: true,
    },
    Extent {
        length: 32,
        writable: false,
    },
];
const CALL: Call = Call {
    buffers: &BUFFERS,
    item_bytes: 4,
    reduces: true,
    rank: 1,
    size: 3,
};
pub const SCRATCH: i32 = -1;

/// Operation, flags, peer, part, regions, steps to wait for.
pub type Row<'a> = (u8, u8, u32, u32, &'a [(i32, u64, u64)], &'a [u32]);

/// What has a codec has int8: 32 bytes of values are 12.
pub fn encoded(rows: &[Row], scratch_bytes: u64) -> Vec<u8> {
    let (mut steps, mut regions, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for (op, flags, peer, part, of_step, waits_for) in rows {
        steps.extend([*op, if *op < 5 { 0 } else { 2 }, *flags, 0]);
        let ranges = [
            (regions.len() / REGION_BYTES) as u32,
            of_step.len() as u32,
            (after.len() / AFTER_BYTES) as u32,
            waits_for.len() as u32,
        ];
        steps.extend(
            [*peer, *part]
                .iter()
                .chain(&ranges)
                .chain(&[0])
                .flat_map(|one| one.to_le_bytes()),
        );
        for (buffer, start, stop) in *of_step {
            regions.extend(buffer.to_le_bytes().into_iter().chain([0; 4]));
            regions.extend([start, stop].iter().flat_map(|one| one.to_le_bytes()));
        }
        after.extend(waits_for.iter().flat_map(|one| one.to_le_bytes()));
    }
    let counts = [
        (steps.len(), STEP_BYTES),
        (regions.len(), REGION_BYTES),
        (after.len(), AFTER_BYTES),
    ];
    let mut whole = MAGIC.to_vec();
    whole.extend(
        counts
            .iter()
            .flat_map(|(bytes, one)| ((bytes / one) as u32).to_le_bytes()),
    );
    whole.extend(scratch_bytes.to_le_bytes());
    [whole, steps, regions, after].concat()
}

/// Receive what rank 0 has, reduce it with our own, send the result back.
const ROWS: [Row; 4] = [
    (2, 0, 0, 6, &[(SCRATCH, 8, 40)], &[]),
    (
        3,
        1,
        0,
        0,
        &[(0, 0, 32), (SCRATCH, 8, 40), (0, 0, 32), (1, 0, 32)],
        &[0],
    ),
    (1, 0, 0, 6, &[(0, 0, 32)], &[0, 1]),
    (4, 0, 0, 0, &[(0, 32, 64), (0, 0, 32)], &[1]),
];

#[test]
fn a_schedule_is_read_as_it_was_written() {
    let schedule = Schedule::decode(&encoded(&ROWS, 40), &CALL).unwrap();
    let kinds: Vec<Kind> = schedule.steps.iter().map(|step| step.kind).collect();
    assert_eq!(
        kinds,
        [Kind::Receive, Kind::Reduce { finish: true }, Kind::Send, Kind::Copy]
    );
    let scratch = Region {
        buffer: 2,
        start: 8,
        stop: 40,
    };
    assert_eq!(schedule.regions(&schedule.steps[0]), [scratch]);
    assert_eq!(schedule.regions(&schedule.steps[1])[1], scratch);
    assert_eq!((schedule.steps[2].peer, schedule.steps[2].part), (0, 6));
    let after: Vec<&[u32]> = schedule.after().collect();
    assert_eq!(after, [&[][..], &[0], &[0, 1], &[1]]);
    assert_eq!(schedule.scratch_bytes, 40);
}

fn refusal(rows: &[Row], call: &Call) -> String {
    Schedule::decode(&encoded(rows, 40), call).unwrap_err()
}

#[test]
fn what_is_wrong_is_said() {
    let one = |row: Row<'static>| refusal(&[row], &CALL);
    for (found, wanted) in [
        (
            one((1, 0, 2, 0, &[(0, 0, 65)], &[])),
            "region 0 from 0 to 65 is not in its buffer of 64 bytes",
        ),
        (
            one((1, 0, 2, 0, &[(0, 9, 8)], &[])),
            "region 0 from 9 to 8 is not in its buffer of 64 bytes",
        ),
        (
            one((1, 0, 2, 0, &[(SCRATCH, 0, 41)], &[])),
            "region 0 from 0 to 41 is not in its buffer of 40 bytes",
        ),
        (
            one((1, 0, 2, 0, &[(2, 0, 0)], &[])),
            "region 0 is of buffer 2, which there is not",
        ),
        (
            one((1, 0, 2, 0, &[(-2, 0, 0)], &[])),
            "region 0 is of buffer -2, which there is not",
        ),
        (
            one((2, 0, 2, 0, &[(1, 0, 4)], &[])),
            "step 0: it writes to buffer 1, which is only to be read",
        ),
        (
            one((1, 0, 3, 0, &[(0, 0, 4)], &[])),
            "step 0: rank 1 of 3 has no rank 3 to talk to",
        ),
        (
            one((1, 0, 1, 0, &[(0, 0, 4)], &[])),
            "step 0: rank 1 of 3 has no rank 1 to talk to",
        ),
        (
            one((1, 0, 0, 0, &[(0, 0, 4), (0, 0, 4)], &[])),
            "step 0: Send of 2 regions",
        ),
        (
            one((3, 0, 0, 0, &[(0, 0, 4)], &[])),
            "step 0: Reduce { finish: false } of 1 regions",
        ),
        (
            one((3, 0, 0, 0, &[(0, 0, 4), (1, 0, 8)], &[])),
            "step 0: 8 bytes into 4",
        ),
        (
            one((3, 0, 0, 0, &[(0, 0, 6), (1, 0, 6)], &[])),
            "step 0: 6 bytes into 6",
        ),
        (
            one((3, 0, 0, 0, &[(0, 0, 8), (0, 4, 12)], &[])),
            "step 0: its source and its target overlap",
        ),
        (
            one((4, 0, 0, 0, &[(0, 0, 8), (0, 0, 8)], &[])),
            "step 0: its source and its target overlap",
        ),
        (
            one((1, 0, 0, 0, &[(0, 0, 8)], &[0])),
            "step 0: it waits for step 0, which is not an earlier one",
        ),
        (
            one((1, 1, 0, 0, &[(0, 0, 8)], &[])),
            "step 0 has operation 1 with flags 1 and codec 0, which is not known",
        ),
        (
            one((7, 0, 0, 0, &[(0, 0, 8)], &[])),
            "step 0 has operation 7 with flags 0 and codec 2, which is not known",
        ),
        (
            one((5, 0, 0, 0, &[(SCRATCH, 0, 12)], &[])),
            "step 0: Encode { codec: Int8, finish: false } of 1 regions",
        ),
        (
            one((5, 0, 0, 0, &[(SCRATCH, 0, 13), (0, 0, 32)], &[])),
            "step 0: 32 bytes of values and 13 encoded ones",
        ),
        (
            one((5, 0, 0, 0, &[(SCRATCH, 0, 12), (0, 0, 32), (0, 32, 60)], &[])),
            "step 0: 32 bytes of values and 12 encoded ones",
        ),
        (
            one((5, 0, 0, 0, &[(SCRATCH, 0, 12), (0, 0, 32), (1, 0, 32)], &[])),
            "step 0: it writes to buffer 1, which is only to be read",
        ),
        (
            one((5, 0, 0, 0, &[(SCRATCH, 0, 12), (0, 0, 32), (0, 16, 48)], &[])),
            "step 0: its source and its target overlap",
        ),
        (
            one((6, 0, 0, 0, &[(0, 0, 30), (SCRATCH, 0, 12)], &[])),
            "step 0: 30 bytes of values and 12 encoded ones",
        ),
        (
            one((6, 0, 0, 0, &[(0, 0, 32), (0, 20, 32)], &[])),
            "step 0: its source and its target overlap",
        ),
        (
            refusal(&[ROWS[0], ROWS[0]], &CALL),
            "step 1: part 6 of rank 0 a second time",
        ),
        (
            refusal(&ROWS, &Call { reduces: false, ..CALL }),
            "step 1: values of this type cannot be reduced so",
        ),
    ] {
        assert_eq!(found, wanted);
    }
}

#[test]
fn no_bytes_panic_and_what_is_taken_keeps_every_bound() {
    let good = encoded(&ROWS, 40);
    for length in 0..good.len() {
        assert!(Schedule::decode(&good[..length], &CALL).is_err());
    }
    let mut taken = 0;
    for at in 0..good.len() {
        for value in [0, 1, 2, 3, 4, 7, 0x7F, 0x80, 0xFE, 0xFF] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let Ok(schedule) = Schedule::decode(&bytes, &CALL) else {
                continue;
            };
            taken += 1;
            for (i, (step, after)) in schedule.steps.iter().zip(schedule.after()).enumerate() {
                assert!(after.iter().all(|one| (*one as usize) < i));
                let lengths = [64, 32, schedule.scratch_bytes];
                for region in schedule.regions(step) {
                    assert!(region.start <= region.stop && region.stop <= lengths[region.buffer]);
                }
                assert!(step.kind == Kind::Send || schedule.regions(step)[0].buffer != 1);
            }
        }
    }
    assert!(taken > 100, "only {taken} were taken: nothing was looked at");
}
