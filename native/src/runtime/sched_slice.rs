//! How long a thread keeps a processor that others wait for.
//!
//! From Linux 6.12 on, a thread may ask for slices of its own length; nothing else about its share changes. Who wakes up
//! with a shorter slice need not wait for the end of a longer one, so the threads of small messages have shorter ones
//! than a thread of bulk, and that shorter ones than who asked for nothing.

use std::io;
use std::mem;
use std::time::Duration;

/// Of a thread of bulk: about a turn of its driver.
pub const BULK: Duration = Duration::from_micros(300);
/// Of the engine's other threads: the least that the kernel grants.
pub const URGENT: Duration = Duration::from_micros(100);

/// Ask for slices of `length` for the calling thread, if somebody has not taken it out of the kernel's fair class.
///
/// Older kernels take no notice. An error is no reason to stop: it goes on as threads do that never asked.
pub fn ask(length: Duration) -> io::Result<()> {
    let mut attributes = attributes()?;
    let policy = attributes.sched_policy.cast_signed();
    if policy != libc::SCHED_OTHER && policy != libc::SCHED_BATCH {
        return Ok(());
    }
    attributes.sched_runtime = length.as_nanos() as u64;
    // SAFETY: the kernel only reads, as many bytes as `size` says: it wrote as many itself.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Those of the calling thread: policy and nice stay as they are where they are set again.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: all zeroes are a valid `sched_attr`, which consists of plain numbers.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let size = mem::size_of::<libc::sched_attr>();
    // SAFETY: `attributes` is there to be written, as many bytes as the kernel is told.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result == 0 {
        Ok(attributes)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn asking_changes_the_slice_alone() {
        let (before, after, older_kernel) = thread::spawn(|| {
            // SAFETY: it sets a number of this thread.
            unsafe { libc::nice(7) };
            let before = attributes().unwrap();
            ask(URGENT).unwrap();
            let after = attributes().unwrap();
            (before, after, after.sched_runtime == 0)
        })
        .join()
        .unwrap();
        assert!(after.sched_runtime == 100_000 || older_kernel);
        assert!(before.sched_nice >= 7);
        assert_eq!(
            (after.sched_policy, after.sched_nice),
            (before.sched_policy, before.sched_nice)
        );
        assert_eq!(
            (after.sched_flags, after.sched_priority),
            (before.sched_flags, before.sched_priority)
        );
    }

    #[test]
    fn who_was_taken_out_of_the_fair_class_is_left_alone() {
        let policy = thread::spawn(|| {
            // SAFETY: the kernel only reads the parameters.
            let set =
                unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }) };
            assert_eq!(set, 0);
            ask(BULK).unwrap();
            attributes().unwrap().sched_policy
        });
        assert_eq!(policy.join().unwrap().cast_signed(), libc::SCHED_IDLE);
    }
}
