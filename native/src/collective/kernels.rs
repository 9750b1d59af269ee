//! The kernels that reduce: values in rank order, 16-bit floats in float32, as `transport/collectives/kernels.py` does.
//!
//! Every element is ((x0 op x1) op x2) ..., one IEEE operation after the other. So neither the size of a chunk nor the
//! width of a vector shows in the result, and both executors give the same bits. A NaN stays a NaN; which of its bits
//! survive is the processor's choice.
//!
//! Values are folded into a block on the stack, which the compiler vectorises. So memory needs no alignment, and the
//! target may be one of the sources: a block of it is written when every source of that block has been read.

use std::ops::{BitAnd, BitOr, BitXor};

/// Elements of a block: with float64, 4 KiB, an eighth of the smallest first-level cache.
const BLOCK_ELEMS: usize = 512;

/// How the ranks' values become one; the numbers are those of an encoded schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    Sum,
    Mean,
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// An element type that can be reduced here. Complex numbers are left to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl ReduceOp {
    /// By the name that `transport/collectives/reduce_op.py` gives it.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "sum" => Self::Sum,
            "mean" => Self::Mean,
            "product" => Self::Product,
            "min" => Self::Min,
            "max" => Self::Max,
            "band" => Self::And,
            "bor" => Self::Or,
            "bxor" => Self::Xor,
            _ => return None,
        })
    }
}

impl Dtype {
    /// By its name on the wire.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "uint8" => Self::U8,
            "uint16" => Self::U16,
            "uint32" => Self::U32,
            "uint64" => Self::U64,
            "int8" => Self::I8,
            "int16" => Self::I16,
            "int32" => Self::I32,
            "int64" => Self::I64,
            "float16" => Self::F16,
            "bfloat16" => Self::Bf16,
            "float32" => Self::F32,
            "float64" => Self::F64,
            _ => return None,
        })
    }

    pub fn item_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// A function that reduces runs of `elems` values into `target`; see `Kernel::run`.
type Run = unsafe fn(target: *mut u8, sources: &[*const u8], elems: usize, size: usize);

/// The reduction of one dtype by one operation.
#[derive(Clone, Copy)]
pub struct Kernel {
    run: Run,
    item_bytes: usize,
    /// Whether it is a mean's.
    pub divides: bool,
}

impl Kernel {
    /// None where there is no such reduction: a bitwise one of floats, or the mean of bool.
    pub fn of(dtype: Dtype, op: ReduceOp) -> Option<Self> {
        let run = match dtype {
            Dtype::Bool => of_bool(op)?,
            Dtype::U8 => of_integer::<u8>(op),
            Dtype::U16 => of_integer::<u16>(op),
            Dtype::U32 => of_integer::<u32>(op),
            Dtype::U64 => of_integer::<u64>(op),
            Dtype::I8 => of_integer::<i8>(op),
            Dtype::I16 => of_integer::<i16>(op),
            Dtype::I32 => of_integer::<i32>(op),
            Dtype::I64 => of_integer::<i64>(op),
            Dtype::F16 => of_float::<F16>(op)?,
            Dtype::Bf16 => of_float::<Bf16>(op)?,
            Dtype::F32 => of_float::<f32>(op)?,
            Dtype::F64 => of_float::<f64>(op)?,
        };
        Some(Self {
            run,
            item_bytes: dtype.item_bytes(),
            divides: op == ReduceOp::Mean,
        })
    }

    /// Of one value.
    pub fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// Reduce equally long runs of values, at least one, in rank order, into `target`.
    ///
    /// `size`: what a mean divides by, at least 1.
    ///
    /// # Safety
    /// `target` is writable and every source readable for `length` bytes. A source is the target or does not overlap it.
    pub unsafe fn run(&self, target: *mut u8, sources: &[*const u8], length: usize, size: usize) {
        // SAFETY: passed on.
        unsafe { (self.run)(target, sources, length / self.item_bytes, size) }
    }
}

/// What lies in memory, and what is reckoned with instead.
pub(super) trait Element: Copy {
    type Wide: Copy + Default;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

trait Arithmetic: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// A NaN wins, the first of two; of equal values (0.0 and -0.0) the second.
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Of integers cut toward zero.
    fn over(self, count: usize) -> Self;
}

/// # Safety
/// As `Kernel::run`, for `elems` values.
unsafe fn fold<E: Element>(
    target: *mut u8,
    sources: &[*const u8],
    elems: usize,
    size: usize,
    combine: impl Fn(E::Wide, E::Wide) -> E::Wide,
    finish: impl Fn(E::Wide, usize) -> E::Wide,
) {
    let Some((first, others)) = sources.split_first() else {
        return;
    };
    let mut block = [E::Wide::default(); BLOCK_ELEMS];
    let mut start = 0;
    while start < elems {
        let total = &mut block[..BLOCK_ELEMS.min(elems - start)];
        // SAFETY: `start` and what `total` adds to it are below `elems`, for which the source is readable.
        let read = |source: *const u8, i: usize| unsafe { source.cast::<E>().add(start + i).read_unaligned() }.widen();
        for (i, value) in total.iter_mut().enumerate() {
            *value = read(*first, i);
        }
        for source in others {
            for (i, value) in total.iter_mut().enumerate() {
                *value = combine(*value, read(*source, i));
            }
        }
        for (i, value) in total.iter().enumerate() {
            // SAFETY: as above, and the target is writable.
            unsafe {
                target
                    .cast::<E>()
                    .add(start + i)
                    .write_unaligned(E::narrow(finish(*value, size)))
            };
        }
        start += total.len();
    }
}

/// A `Run` over values of a type, which combines two, and finishes the last with what a mean divides by.
macro_rules! run {
    ($element:ty, $combine:expr) => {
        run!($element, $combine, |one, _| one)
    };
    ($element:ty, $combine:expr, $finish:expr) => {
        // SAFETY: whoever calls this keeps what `Kernel::run` says.
        |target, sources, elems, size| unsafe { fold::<$element>(target, sources, elems, size, $combine, $finish) }
    };
}

fn of_float<E: Element<Wide: Arithmetic>>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Sum => run!(E, Arithmetic::add),
        ReduceOp::Mean => run!(E, Arithmetic::add, Arithmetic::over),
        ReduceOp::Product => run!(E, Arithmetic::multiply),
        ReduceOp::Min => run!(E, Arithmetic::least),
        ReduceOp::Max => run!(E, Arithmetic::greatest),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => return None,
    })
}

fn of_integer<E>(op: ReduceOp) -> Run
where
    E: Element<Wide = E> + Arithmetic + BitAnd<Output = E> + BitOr<Output = E> + BitXor<Output = E>,
{
    match op {
        ReduceOp::And => run!(E, BitAnd::bitand),
        ReduceOp::Or => run!(E, BitOr::bitor),
        ReduceOp::Xor => run!(E, BitXor::bitxor),
        arithmetic => of_float::<E>(arithmetic).expect("every other operation is arithmetic"),
    }
}

/// Of bool, sum and maximum are "or", product and minimum "and". Any byte but 0 is true.
fn of_bool(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or => run!(u8, |a, b| u8::from((a | b) != 0)),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::And => run!(u8, |a, b| u8::from((a != 0) & (b != 0))),
        ReduceOp::Xor => run!(u8, |a, b| u8::from((a != 0) != (b != 0))),
        ReduceOp::Mean => return None,
    })
}

macro_rules! integer {
    ($($integer:ty as $quotient:ty),*) => {$(
        impl Element for $integer {
            type Wide = Self;
            fn widen(self) -> Self {
                self
            }
            fn narrow(wide: Self) -> Self {
                wide
            }
        }

        impl Arithmetic for $integer {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
            fn over(self, count: usize) -> Self {
                (<$quotient>::from(self) / count as $quotient) as Self // the count may not fit into 8 bits
            }
        }
    )*};
}

macro_rules! float {
    ($($float:ty),*) => {$(
        impl Element for $float {
            type Wide = Self;
            fn widen(self) -> Self {
                self
            }
            fn narrow(wide: Self) -> Self {
                wide
            }
        }

        impl Arithmetic for $float {
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            fn least(self, other: Self) -> Self {
                if (self < other) | self.is_nan() { self } else { other }
            }
            fn greatest(self, other: Self) -> Self {
                if (self > other) | self.is_nan() { self } else { other }
            }
            fn over(self, count: usize) -> Self {
                self / count as Self
            }
        }
    )*};
}

integer!(
    u8 as u64, u16 as u64, u32 as u64, u64 as u64, i8 as i64, i16 as i64, i32 as i64, i64 as i64
);
float!(f32, f64);

/// The upper half of a float32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(pub u16);

impl Element for Bf16 {
    type Wide = f32;

    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        // Adding 0x7fff, and one more where the lowest kept bit is set, carries into it exactly when rounding goes up.
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        Self(if wide.is_nan() { quiet } else { rounded } as u16)
    }
}

/// IEEE 754 binary16.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct F16(u16);

/// The difference of the two formats' exponent biases, as bits of a float32.
const REBIAS: u32 = (127 - 15) << 23;
/// As bits of a float32: 0.5 counts 2^-24, the least subnormal float16, in its last bit.
const HALF: u32 = 126 << 23;
const INFINITY: u32 = 0x7C00;

impl Element for F16 {
    type Wide = f32;

    fn widen(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7FFF);
        let normal = (magnitude << 13) + REBIAS;
        let subnormal = (f32::from_bits(magnitude | HALF) - 0.5).to_bits();
        let special = normal + REBIAS; // infinity and NaN keep the largest exponent
        let finite = if magnitude < 0x400 { subnormal } else { normal };
        f32::from_bits(sign | if magnitude < INFINITY { finite } else { special })
    }

    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7FFF_FFFF;
        // Rounded as bfloat16 is; what is too large for the format becomes infinity.
        let rounded = magnitude
            .wrapping_sub(REBIAS)
            .wrapping_add(0xFFF + ((magnitude >> 13) & 1))
            >> 13;
        let normal = rounded.min(INFINITY);
        // The processor rounds here: the sum has 2^-24 as its last bit.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(HALF);
        let finite = if magnitude < REBIAS + (1 << 23) {
            subnormal
        } else {
            normal
        };
        let quiet = INFINITY | 0x200 | ((magnitude >> 13) & 0x3FF);
        Self((sign | if wide.is_nan() { quiet } else { finite }) as u16)
    }
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
