//! Threads and tasks: where they run, what a panic ends, and how they share a processor.

pub mod fault_injection;
pub mod locks;
pub mod sched_slice;
pub mod supervision;
pub mod task_tracker;
pub mod thread;
