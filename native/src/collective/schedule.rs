//! One rank's steps in a collective, read from the bytes that `transport/collectives/schedule.py` describes and writes.
//!
//! What comes from there is believed no further than it was checked here: every region lies in its buffer, what is
//! written is writable, and a step waits for earlier ones alone. That two steps which do not wait for each other never
//! meet on the same bytes is the schedule's promise; where it is broken, values are wrong and nothing else.

use std::collections::HashSet;
use std::ops::Range;

use super::codecs::{Codec, VALUE_BYTES};

const MAGIC: &[u8] = b"HCS1";
const HEADER_BYTES: usize = 24;
const STEP_BYTES: usize = 32;
const REGION_BYTES: usize = 24;
const AFTER_BYTES: usize = 4;
const FINISH: u8 = 1;

/// A buffer of the call, as far as a schedule can be wrong about it.
#[derive(Clone, Copy)]
pub struct Extent {
    pub length: usize,
    pub writable: bool,
}

/// Bytes `start` to `stop` of the buffer with this index; scratch memory is the one behind the call's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub buffer: usize,
    pub start: usize,
    pub stop: usize,
}

impl Region {
    pub fn len(&self) -> usize {
        self.stop - self.start
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer && self.start < other.stop && other.start < self.stop
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Send the region to a rank; done when it was acknowledged, or a copy of it was handed over (`unacknowledged`).
    Send,
    /// Receive from a rank into the region.
    Receive,
    /// Reduce all regions but the first, which are in rank order, into the first; a mean divides where it finishes.
    Reduce { finish: bool },
    /// Copy the second region to the first.
    Copy,
    /// Encode the float32 values of the second region into the first; a third one holds what is left out. It is in units
    /// of the result: where `finish` says that the values are not, a mean's are divided first.
    Encode { codec: Codec, finish: bool },
    /// Decode the second region into float32 values, the first.
    Decode(Codec),
}

/// `peer` is a rank of the group, and `part` what its message is called, where the step is to send or to receive.
#[derive(Clone, Debug)]
pub struct Step {
    pub kind: Kind,
    pub peer: u32,
    pub part: u32,
    /// Of a message that carries encoded bytes; else 0.
    pub codec: u8,
    regions: Range<usize>,
    after: Range<usize>,
}

#[derive(Debug)]
pub struct Schedule {
    pub steps: Vec<Step>,
    pub scratch_bytes: usize,
    regions: Vec<Region>,
    after: Vec<u32>,
}

/// What a schedule has to fit.
pub struct Call<'a> {
    pub buffers: &'a [Extent],
    pub item_bytes: usize,
    /// Whether the call's values can be reduced here.
    pub reduces: bool,
    pub rank: u32,
    pub size: u32,
}

impl Schedule {
    /// Read and check an encoded schedule; the error says what is wrong with which step.
    pub fn decode(encoded: &[u8], call: &Call) -> Result<Self, String> {
        let mut reader = Reader(encoded);
        if reader.take(4) != Some(MAGIC) {
            return Err("a schedule begins with HCS1".to_owned());
        }
        let counts = (reader.u32(), reader.u32(), reader.u32(), reader.u64());
        let (Some(steps), Some(regions), Some(after), Some(scratch_bytes)) = counts else {
            return Err(format!(
                "a schedule of {} bytes is shorter than its header",
                encoded.len()
            ));
        };
        let counted = [(steps, STEP_BYTES), (regions, REGION_BYTES), (after, AFTER_BYTES)];
        let told: u128 = counted
            .iter()
            .map(|(count, bytes)| u128::from(*count) * *bytes as u128)
            .sum();
        if told + HEADER_BYTES as u128 != encoded.len() as u128 {
            let said = format!("{steps} steps, {regions} regions and {after} to wait for");
            return Err(format!("a schedule of {} bytes cannot hold {said}", encoded.len()));
        }
        let scratch = usize::try_from(scratch_bytes)
            .ok()
            .filter(|bytes| *bytes <= isize::MAX as usize);
        let scratch_bytes = scratch.ok_or_else(|| format!("{scratch_bytes} bytes of scratch memory"))?;
        let mut schedule = Self {
            steps: (0..steps).map(|i| reader.step(i)).collect::<Result<_, _>>()?,
            regions: (0..regions)
                .map(|i| reader.region(i, call, scratch_bytes))
                .collect::<Result<_, _>>()?,
            after: Vec::new(),
            scratch_bytes,
        };
        schedule.after = (0..after).map_while(|_| reader.u32()).collect();
        schedule.check(call)?;
        Ok(schedule)
    }

    /// The step's regions, its target first.
    pub fn regions(&self, step: &Step) -> &[Region] {
        &self.regions[step.regions.clone()]
    }

    /// For each step those that it waits for.
    pub fn after(&self) -> impl ExactSizeIterator<Item = &[u32]> + Clone {
        self.steps.iter().map(|step| &self.after[step.after.clone()])
    }

    fn check(&self, call: &Call) -> Result<(), String> {
        let waited_for: usize = self.steps.iter().map(|step| step.after.len()).sum();
        if waited_for != self.after.len() {
            return Err(format!(
                "{waited_for} steps to wait for where {} are listed",
                self.after.len()
            ));
        }
        let mut messages = HashSet::new();
        for (i, step) in self.steps.iter().enumerate() {
            self.check_step(i, step, call)
                .map_err(|wrong| format!("step {i}: {wrong}"))?;
            let message = matches!(step.kind, Kind::Send | Kind::Receive);
            if message && !messages.insert((step.kind == Kind::Send, step.peer, step.part)) {
                return Err(format!(
                    "step {i}: part {} of rank {} a second time",
                    step.part, step.peer
                ));
            }
        }
        Ok(())
    }

    fn check_step(&self, i: usize, step: &Step, call: &Call) -> Result<(), String> {
        if step.regions.end > self.regions.len() || step.after.end > self.after.len() {
            return Err("it has regions or steps to wait for beyond the schedule's".to_owned());
        }
        if let Some(later) = self.after[step.after.clone()].iter().find(|one| **one as usize >= i) {
            return Err(format!("it waits for step {later}, which is not an earlier one"));
        }
        let regions = self.regions(step);
        let wanted = match step.kind {
            Kind::Send | Kind::Receive => regions.len() == 1,
            Kind::Reduce { .. } => regions.len() >= 2,
            Kind::Copy | Kind::Decode(_) => regions.len() == 2,
            Kind::Encode { .. } => matches!(regions.len(), 2 | 3),
        };
        if !wanted {
            return Err(format!("{:?} of {} regions", step.kind, regions.len()));
        }
        let target = &regions[0];
        let target_count = usize::from(step.kind != Kind::Send);
        let residual = match step.kind {
            Kind::Encode { .. } => regions.get(2),
            _ => None,
        };
        let read_only = |one: &&Region| call.buffers.get(one.buffer).is_some_and(|buffer| !buffer.writable);
        if let Some(one) = regions[..target_count].iter().chain(residual).find(read_only) {
            return Err(format!("it writes to buffer {}, which is only to be read", one.buffer));
        }
        if matches!(step.kind, Kind::Send | Kind::Receive) {
            if step.peer >= call.size || step.peer == call.rank {
                return Err(format!(
                    "rank {} of {} has no rank {} to talk to",
                    call.rank, call.size, step.peer
                ));
            }
            return Ok(());
        }
        if matches!(step.kind, Kind::Reduce { .. }) && !call.reduces {
            return Err("values of this type cannot be reduced so".to_owned());
        }
        if let Kind::Encode { codec, .. } | Kind::Decode(codec) = step.kind {
            return check_coding(codec, step.kind, regions);
        }
        for source in &regions[1..] {
            if source.len() != target.len() || !target.len().is_multiple_of(call.item_bytes) {
                return Err(format!("{} bytes into {}", source.len(), target.len()));
            }
            if source.overlaps(target) && (source != target || step.kind == Kind::Copy) {
                return Err("its source and its target overlap".to_owned());
            }
        }
        Ok(())
    }
}

/// Regions of values, of equal length, and one of what they are encoded to; none may overlap another.
fn check_coding(codec: Codec, kind: Kind, regions: &[Region]) -> Result<(), String> {
    let (encoded, values) = match kind {
        Kind::Encode { .. } => (&regions[0], &regions[1..]),
        _ => (&regions[1], &regions[..1]),
    };
    let length = values[0].len();
    let fits = length.is_multiple_of(VALUE_BYTES) && encoded.len() == codec.encoded_bytes(length / VALUE_BYTES);
    if !fits || values.iter().any(|one| one.len() != length) {
        return Err(format!("{length} bytes of values and {} encoded ones", encoded.len()));
    }
    let overlap = |i: usize| regions[..i].iter().any(|one| one.overlaps(&regions[i]));
    if (1..regions.len()).any(overlap) {
        return Err("its source and its target overlap".to_owned());
    }
    Ok(())
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
    }

    fn range(&mut self) -> Option<Range<usize>> {
        let (first, count) = (self.u32()? as usize, self.u32()? as usize);
        Some(first..first.checked_add(count)?)
    }

    fn step(&mut self, i: u32) -> Result<Step, String> {
        let short = || format!("step {i} is cut off");
        let &[op, codec, flags, zero] = self.take(4).ok_or_else(short)? else {
            return Err(short());
        };
        let (peer, part) = self.u32().zip(self.u32()).ok_or_else(short)?;
        let (regions, after) = self.range().zip(self.range()).ok_or_else(short)?;
        if zero != 0 || self.u32() != Some(0) {
            return Err(format!("step {i} says something in what is reserved"));
        }
        let encoding = Codec::numbered(codec);
        let known = codec == 0 || encoding.is_some();
        let kind = match (op, flags, encoding) {
            (1, 0, _) if known => Kind::Send,
            (2, 0, _) if known => Kind::Receive,
            (3, 0 | FINISH, None) => Kind::Reduce {
                finish: flags == FINISH,
            },
            (4, 0, None) => Kind::Copy,
            (5, 0 | FINISH, Some(codec)) => Kind::Encode {
                codec,
                finish: flags == FINISH,
            },
            (6, 0, Some(codec)) => Kind::Decode(codec),
            _ => {
                return Err(format!(
                    "step {i} has operation {op} with flags {flags} and codec {codec}, which is not known"
                ));
            }
        };
        Ok(Step {
            kind,
            peer,
            part,
            codec,
            regions,
            after,
        })
    }

    fn region(&mut self, i: u32, call: &Call, scratch_bytes: usize) -> Result<Region, String> {
        let read = (self.u32(), self.u32(), self.u64(), self.u64());
        let (Some(buffer), Some(0), Some(start), Some(stop)) = read else {
            return Err(format!("region {i} says something in what is reserved"));
        };
        let (buffer, length) = match buffer as i32 {
            -1 => (call.buffers.len(), scratch_bytes),
            _ => match call.buffers.get(buffer as usize) {
                Some(extent) => (buffer as usize, extent.length),
                None => return Err(format!("region {i} is of buffer {}, which there is not", buffer as i32)),
            },
        };
        if start > stop || stop > length as u64 {
            return Err(format!(
                "region {i} from {start} to {stop} is not in its buffer of {length} bytes"
            ));
        }
        Ok(Region {
            buffer,
            start: start as usize,
            stop: stop as usize,
        })
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
pub(super) mod tests;
