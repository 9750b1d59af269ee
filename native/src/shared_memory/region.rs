//! The memory itself: a memfd (memfd_create(2)) whose size can never change, with two rings and what both sides say of them.
//!
//! One page of words, each in cache lines of its own, then the rings. Nobody else finds the memory: it has no name, and goes
//! with the last process that has it. Its pages are taken when they are written first.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Of one direction: four collective chunks. Both sides have the same.
pub const RING_BYTES: usize = 2 << 20;
const WORDS_BYTES: usize = 4096;
const REGION_BYTES: usize = WORDS_BYTES + 2 * RING_BYTES;
/// Two cache lines: the processor fetches them in pairs.
const WORD_BYTES: usize = 128;
const WORDS_OF_SIDE: usize = 8;

/// Who made the memory, or who was given it. Each writes into the ring of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Dialler,
    Dialled,
}

impl Side {
    pub fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Dialled,
            Self::Dialled => Self::Dialler,
        }
    }
}

/// What a side says. Only that side writes it, but for `Asleep`.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// How far it has written its ring, in bytes since the beginning.
    Head,
    /// How far it has read the other's.
    Tail,
    /// How many messages of the other's may begin.
    Allowed,
    /// How many bytes of each it takes unasked.
    Eager,
    /// It wants to be woken when the other has read so far.
    Wanted,
    /// 1: it waits for its socket. Whoever wakes it makes it 0.
    Asleep,
}

pub struct Region {
    address: NonNull<u8>,
    process: u32,
}

// SAFETY: the mapping belongs to no thread; what is read and written there goes through atomics or is copied, and the
// other process is there anyway.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New memory, and what the other side finds it by.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create("hive-qos", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, REGION_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file)?, file))
    }

    /// Memory of a peer's making. One that could shrink would end this process when it does (SIGBUS).
    pub fn adopt(file: &OwnedFd) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(file)?;
        let bytes = rustix::fs::fstat(file)?.st_size;
        if !sealed.contains(SEALS) || bytes != REGION_BYTES as i64 {
            return Err(io::Error::other(format!(
                "memory of {bytes} bytes sealed with {sealed:?}, not of {REGION_BYTES} bytes"
            )));
        }
        Self::map(file)
    }

    fn map(file: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a new mapping, where nothing else is. Its file is of that size and keeps it.
        let address = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(null_mut(), REGION_BYTES, access, MapFlags::SHARED, file, 0)?
        };
        let region = Self {
            address: NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?,
            process: std::process::id(),
        };
        // SAFETY: it is the mapping of just now. A forked child has no part in the engine.
        unsafe { rustix::mm::madvise(address, REGION_BYTES, Advice::LinuxDontFork)? };
        Ok(region)
    }

    pub fn word(&self, side: Side, word: Word) -> &AtomicU64 {
        let at = (side as usize * WORDS_OF_SIDE + word as usize) * WORD_BYTES;
        // SAFETY: within the first page, aligned, and nobody here uses it in any other way.
        unsafe { AtomicU64::from_ptr(self.address.as_ptr().add(at).cast()) }
    }

    /// Where a side's ring begins: `RING_BYTES` from there on are mapped as long as the region lives.
    pub fn ring(&self, side: Side) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.address.as_ptr().add(WORDS_BYTES + side as usize * RING_BYTES) }
    }
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Drop for Region {
    fn drop(&mut self) {
        // In a forked child something else may be there.
        if std::process::id() == self.process {
            // SAFETY: it is ours, and whoever had an address of it had the region too.
            let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), REGION_BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_may_shrink_or_is_of_another_size_is_refused() {
        let (_region, file) = Region::create().unwrap();
        Region::adopt(&file).unwrap();
        assert!(rustix::fs::ftruncate(&file, 1).is_err());
        for (bytes, seals) in [(REGION_BYTES, SealFlags::GROW), (WORDS_BYTES, SEALS)] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let other = rustix::fs::memfd_create("other", flags).unwrap();
            rustix::fs::ftruncate(&other, bytes as u64).unwrap();
            rustix::fs::fcntl_add_seals(&other, seals).unwrap();
            assert!(Region::adopt(&other).is_err());
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Region::adopt(&file.into()).is_err());
    }
}
