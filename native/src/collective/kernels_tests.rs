//! The kernels beside the plainest evaluation that there is, over random values, lengths and places in memory.

use super::*;

/// xorshift64*, from a seed that a failure prints.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

const OPERATIONS: [ReduceOp; 8] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::And,
    ReduceOp::Or,
    ReduceOp::Xor,
];

/// Reduce rows of values that lie at odd addresses, into the `into`th of them or into a row of its own.
fn reduced(kernel: Kernel, rows: &[Vec<u8>], into: Option<usize>) -> Vec<u8> {
    let length = rows[0].len();
    let mut memory: Vec<Vec<u8>> = rows
        .iter()
        .map(|row| [&[0xEE], row.as_slice(), &[0xEE]].concat())
        .collect();
    memory.push(vec![0xEE; length + 2]);
    let target = into.unwrap_or(rows.len());
    let addresses: Vec<*mut u8> = memory.iter_mut().map(|row| row.as_mut_ptr().wrapping_add(1)).collect();
    let sources: Vec<*const u8> = addresses[..rows.len()].iter().map(|one| one.cast_const()).collect();
    // SAFETY: every row has `length` bytes behind its first, and rows do not overlap.
    unsafe { kernel.run(addresses[target], &sources, length, rows.len()) };
    for (i, row) in memory.iter().enumerate() {
        assert_eq!((row[0], row[length + 1]), (0xEE, 0xEE), "wrote beside row {i}");
        assert!(
            i == target || i == rows.len() || row[1..=length] == rows[i],
            "wrote into source {i}"
        );
    }
    memory[target][1..=length].to_vec()
}

fn values<const N: usize, T>(row: &[u8], of: impl Fn([u8; N]) -> T) -> Vec<T> {
    row.chunks_exact(N).map(|one| of(one.try_into().unwrap())).collect()
}

/// Hold a dtype's kernels, over bytes of the bits in `mask`, against `naive`, which gives None where there is no such reduction.
fn hold<const N: usize, T: Copy, B: PartialEq + std::fmt::Debug>(
    dtype: Dtype,
    mask: u8,
    of: impl Fn([u8; N]) -> T,
    bits: impl Fn(T) -> B,
    naive: impl Fn(ReduceOp, &[T]) -> Option<T>,
) {
    for seed in 1..=60 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed));
        let (ranks, elems) = (1 + random.below(9), random.below(3 * BLOCK_ELEMS));
        let rows: Vec<Vec<u8>> = (0..ranks)
            .map(|_| (0..elems * N).map(|_| random.next() as u8 & mask).collect())
            .collect();
        let columns: Vec<Vec<T>> = rows.iter().map(|row| values(row, &of)).collect();
        for op in OPERATIONS {
            let Some(kernel) = Kernel::of(dtype, op) else {
                assert!(naive(op, &[of([1; N])]).is_none(), "{dtype:?} {op:?}");
                continue;
            };
            let into = Some(random.below(ranks + 1)).filter(|row| *row < ranks);
            let found = values(&reduced(kernel, &rows, into), &of);
            for (i, value) in found.into_iter().enumerate() {
                let column: Vec<T> = columns.iter().map(|row| row[i]).collect();
                let wanted = naive(op, &column).unwrap();
                assert_eq!(bits(value), bits(wanted), "{dtype:?} {op:?}, seed {seed}, element {i}");
            }
        }
    }
}

/// All NaNs count as one: which of their bits survive is the processor's choice.
fn float_bits(value: f64) -> u64 {
    if value.is_nan() { 1 } else { value.to_bits() }
}

macro_rules! naive_float {
    ($float:ty) => {
        |op: ReduceOp, values: &[$float]| -> Option<$float> {
            let nan = values.iter().copied().find(|value| value.is_nan());
            let (first, others) = values.split_first()?;
            let combine: fn($float, $float) -> $float = match op {
                ReduceOp::Sum | ReduceOp::Mean => |a, b| a + b,
                ReduceOp::Product => |a, b| a * b,
                ReduceOp::Min => |a, b| if a < b { a } else { b },
                ReduceOp::Max => |a, b| if a > b { a } else { b },
                _ => return None,
            };
            let total = others.iter().fold(*first, |total, value| combine(total, *value));
            let count = values.len() as $float;
            Some(nan.unwrap_or(if op == ReduceOp::Mean { total / count } else { total }))
        }
    };
}

macro_rules! naive_integer {
    ($integer:ty) => {
        |op: ReduceOp, values: &[$integer]| -> Option<$integer> {
            let wide = values.iter().map(|value| *value as i128);
            let sum = wide.clone().sum::<i128>() as $integer;
            Some(match op {
                ReduceOp::Sum => sum,
                ReduceOp::Mean => (sum as i128 / values.len() as i128) as $integer,
                ReduceOp::Product => values.iter().fold(1, |total, value| total.wrapping_mul(*value)),
                ReduceOp::Min => wide.min()? as $integer,
                ReduceOp::Max => wide.max()? as $integer,
                ReduceOp::And => values.iter().fold(!0, |total, value| total & value),
                ReduceOp::Or => values.iter().fold(0, |total, value| total | value),
                ReduceOp::Xor => values.iter().fold(0, |total, value| total ^ value),
            })
        }
    };
}

#[test]
fn floats_are_reduced_one_operation_after_the_other() {
    hold(
        Dtype::F32,
        0xFF,
        f32::from_le_bytes,
        |value| float_bits(value.into()),
        naive_float!(f32),
    );
    hold(Dtype::F64, 0xFF, f64::from_le_bytes, float_bits, naive_float!(f64));
}

#[test]
fn sixteen_bit_floats_are_reduced_in_float32_and_rounded_once() {
    let widened = |narrow: u16, kind: Dtype| match kind {
        Dtype::Bf16 => Bf16(narrow).widen(),
        _ => F16(narrow).widen(),
    };
    for kind in [Dtype::Bf16, Dtype::F16] {
        let naive = naive_float!(f32);
        let narrow = |wide: f32| match kind {
            Dtype::Bf16 => Bf16::narrow(wide).0,
            _ => F16::narrow(wide).0,
        };
        hold(
            kind,
            0xFF,
            u16::from_le_bytes,
            |value| float_bits(widened(value, kind).into()),
            |op, values| {
                let wide: Vec<f32> = values.iter().map(|value| widened(*value, kind)).collect();
                naive(op, &wide).map(narrow)
            },
        );
    }
}

#[test]
fn integers_wrap_and_their_mean_is_cut_toward_zero() {
    hold(Dtype::U8, 0xFF, u8::from_le_bytes, |value| value, naive_integer!(u8));
    hold(Dtype::U16, 0xFF, u16::from_le_bytes, |value| value, naive_integer!(u16));
    hold(Dtype::U32, 0xFF, u32::from_le_bytes, |value| value, naive_integer!(u32));
    hold(Dtype::U64, 0xFF, u64::from_le_bytes, |value| value, naive_integer!(u64));
    hold(Dtype::I8, 0xFF, i8::from_le_bytes, |value| value, naive_integer!(i8));
    hold(Dtype::I16, 0xFF, i16::from_le_bytes, |value| value, naive_integer!(i16));
    hold(Dtype::I32, 0xFF, i32::from_le_bytes, |value| value, naive_integer!(i32));
    hold(Dtype::I64, 0xFF, i64::from_le_bytes, |value| value, naive_integer!(i64));
}

#[test]
fn bool_is_or_for_sum_and_maximum_and_and_for_product_and_minimum() {
    hold(
        Dtype::Bool,
        0x81, // a quarter is false, and true need not be 1
        |[byte]: [u8; 1]| byte != 0,
        |value| value,
        |op, values| match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or => Some(values.iter().any(|value| *value)),
            ReduceOp::Product | ReduceOp::Min | ReduceOp::And => Some(values.iter().all(|value| *value)),
            ReduceOp::Xor => Some(values.iter().filter(|value| **value).count() % 2 == 1),
            ReduceOp::Mean => None,
        },
    );
}

#[test]
fn float16_is_widened_exactly_and_narrowed_to_the_nearest_ties_to_even() {
    for bits in 0..=u16::MAX {
        let wide = F16(bits).widen();
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3FF));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        };
        assert_eq!(float_bits(wide.abs().into()), float_bits(magnitude), "{bits:#x}");
        assert_eq!(wide.is_sign_negative(), bits & 0x8000 != 0);
        if wide.is_nan() {
            assert!(F16(F16::narrow(wide).0).widen().is_nan(), "{bits:#x}");
            continue;
        }
        assert_eq!(F16::narrow(wide).0, bits);
        // Between this and the next larger: the half goes to the even one, what lies beside it to the nearer.
        let next = F16(bits.wrapping_add(1)).widen();
        if next.is_finite() && bits & 0x7FFF < 0x7BFF {
            let half = (wide + next) / 2.0; // 13 bits more than float16: exact
            let even = bits + (bits & 1);
            assert_eq!(F16::narrow(half).0, even, "{bits:#x}");
            assert_eq!(F16::narrow(f32::from_bits(half.to_bits() + 1)).0, bits + 1, "{bits:#x}");
            assert_eq!(F16::narrow(f32::from_bits(half.to_bits() - 1)).0, bits, "{bits:#x}");
        }
    }
    assert_eq!(F16::narrow(65519.996).0, 0x7BFF);
    assert_eq!(F16::narrow(65520.0).0, 0x7C00);
    assert_eq!(F16::narrow(f32::MAX).0, 0x7C00);
    assert_eq!(F16::narrow(-1e-30).0, 0x8000);
}
