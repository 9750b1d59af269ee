//! float32 values encoded for the wire: the bits of `transport/collectives/codecs.py`, which says what they mean.
//!
//! Values are taken a block at a time into the stack, so memory needs no alignment and the compiler vectorises.

use super::kernels::{Bf16, Element};

/// Values of one scale.
const BLOCK_ELEMS: usize = 256;
const SCALE_BYTES: usize = 4;
/// Of a float32.
pub const VALUE_BYTES: usize = 4;
const MAGNITUDE_BITS: u32 = 0x7FFF_FFFF;
const INFINITY_BITS: u32 = 0x7F80_0000;
const NAN_BITS: u32 = 0x7FC0_0000;
/// 1.5 * 2^23: a float32 near it has no fraction, so adding it rounds to a whole number, ties to even.
const WHOLE: f32 = 12_582_912.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Bfloat16,
    Int8,
    Int4,
}

impl Codec {
    /// By its number in an encoded schedule.
    pub fn numbered(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Bfloat16,
            2 => Self::Int8,
            3 => Self::Int4,
            _ => return None,
        })
    }

    /// Length of so many values in one message.
    pub fn encoded_bytes(self, elems: usize) -> usize {
        let scales = SCALE_BYTES * elems.div_ceil(BLOCK_ELEMS);
        match self {
            Self::Bfloat16 => 2 * elems,
            Self::Int8 => scales + elems,
            Self::Int4 => scales + elems.div_ceil(2),
        }
    }

    /// Encode `elems` values; with a residual, what is left out of them is kept there for the next time.
    ///
    /// `divisor`: what the values are yet to be divided by. The residual's are divided.
    ///
    /// # Safety
    /// `target` is writable for `encoded_bytes(elems)`, `source` readable and `residual` both for `elems` values. None of
    /// them overlap.
    pub unsafe fn encode(
        self,
        target: *mut u8,
        source: *const u8,
        residual: Option<*mut u8>,
        elems: usize,
        divisor: usize,
    ) {
        let divisor = divisor as f32;
        let mut block = [0.0_f32; BLOCK_ELEMS];
        let mut decoded = [0.0_f32; BLOCK_ELEMS];
        let mut written = 0;
        let mut start = 0;
        while start < elems {
            let values = &mut block[..BLOCK_ELEMS.min(elems - start)];
            let length = self.encoded_bytes(values.len());
            // SAFETY: whole blocks before this one and this one are what the whole is encoded to.
            let encoded = unsafe { std::slice::from_raw_parts_mut(target.add(written), length) };
            // SAFETY: `start` and what `values` adds to it are at most `elems`.
            unsafe { load(values, source, start) };
            if let Some(residual) = residual {
                let owed = &mut decoded[..values.len()];
                // SAFETY: as above.
                unsafe { load(owed, residual, start) };
                values
                    .iter_mut()
                    .zip(owed.iter())
                    .for_each(|(value, owed)| *value += owed * divisor);
            }
            self.encode_block(encoded, values);
            if let Some(residual) = residual {
                let left = &mut decoded[..values.len()];
                self.decode_block(left, encoded);
                for (left, value) in left.iter_mut().zip(values.iter()) {
                    let difference = (value - *left) / divisor;
                    *left = if difference.is_finite() { difference } else { 0.0 };
                }
                // SAFETY: as above, and the residual is writable.
                unsafe { store(residual, left, start) };
            }
            start += values.len();
            written += length;
        }
    }

    /// Decode `elems` values.
    ///
    /// # Safety
    /// `target` is writable for `elems` values, `source` readable for `encoded_bytes(elems)`. They do not overlap.
    pub unsafe fn decode(self, target: *mut u8, source: *const u8, elems: usize) {
        let mut block = [0.0_f32; BLOCK_ELEMS];
        let mut read = 0;
        let mut start = 0;
        while start < elems {
            let values = &mut block[..BLOCK_ELEMS.min(elems - start)];
            let length = self.encoded_bytes(values.len());
            // SAFETY: as in `encode`.
            self.decode_block(values, unsafe { std::slice::from_raw_parts(source.add(read), length) });
            // SAFETY: as in `encode`.
            unsafe { store(target, values, start) };
            start += values.len();
            read += length;
        }
    }

    fn encode_block(self, encoded: &mut [u8], values: &[f32]) {
        let code_max = match self {
            Self::Bfloat16 => {
                for (two, value) in encoded.chunks_exact_mut(2).zip(values) {
                    two.copy_from_slice(&Bf16::narrow(*value).0.to_le_bytes());
                }
                return;
            }
            Self::Int8 => 127.0,
            Self::Int4 => 7.0,
        };
        let peak = values
            .iter()
            .fold(0, |peak, value| (value.to_bits() & MAGNITUDE_BITS).max(peak));
        let finite = peak < INFINITY_BITS;
        let scale = if finite {
            f32::from_bits(peak) / code_max
        } else {
            f32::from_bits(NAN_BITS)
        };
        let (head, codes) = encoded.split_at_mut(SCALE_BYTES);
        head.copy_from_slice(&scale.to_le_bytes());
        if !finite || scale == 0.0 {
            codes.fill(0);
            return;
        }
        let code = |value: f32| ((value / scale).clamp(-code_max, code_max) + WHOLE).to_bits() as u8;
        if self == Self::Int8 {
            codes
                .iter_mut()
                .zip(values)
                .for_each(|(byte, value)| *byte = code(*value));
            return;
        }
        for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
            let second = pair.get(1).map_or(0, |value| code(*value));
            *byte = code(pair[0]) & 0xF | second << 4;
        }
    }

    fn decode_block(self, values: &mut [f32], encoded: &[u8]) {
        if self == Self::Bfloat16 {
            for (value, two) in values.iter_mut().zip(encoded.chunks_exact(2)) {
                *value = Bf16(u16::from_le_bytes([two[0], two[1]])).widen();
            }
            return;
        }
        let (head, codes) = encoded.split_at(SCALE_BYTES);
        let scale = f32::from_le_bytes(head.try_into().expect("four"));
        if self == Self::Int8 {
            for (value, code) in values.iter_mut().zip(codes) {
                *value = f32::from(*code as i8) * scale;
            }
            return;
        }
        for (pair, byte) in values.chunks_mut(2).zip(codes) {
            // Arithmetic shifts keep the sign.
            pair[0] = f32::from((byte << 4) as i8 >> 4) * scale;
            if let Some(second) = pair.get_mut(1) {
                *second = f32::from(*byte as i8 >> 4) * scale;
            }
        }
    }
}

/// # Safety
/// `source` is readable for as many values as there are from `start` on.
unsafe fn load(values: &mut [f32], source: *const u8, start: usize) {
    // SAFETY: passed on; the stack overlaps nothing.
    unsafe {
        std::ptr::copy_nonoverlapping(
            source.add(VALUE_BYTES * start),
            values.as_mut_ptr().cast(),
            size_of_val(values),
        )
    };
}

/// # Safety
/// `target` is writable for as many values as there are from `start` on.
unsafe fn store(target: *mut u8, values: &[f32], start: usize) {
    // SAFETY: passed on.
    unsafe {
        std::ptr::copy_nonoverlapping(
            values.as_ptr().cast(),
            target.add(VALUE_BYTES * start),
            size_of_val(values),
        )
    };
}
