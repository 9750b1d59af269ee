//! Threads and tasks: where they run, and what a panic ends.

pub mod fault_injection;
pub mod locks;
pub mod supervision;
pub mod task_tracker;
pub mod thread;
