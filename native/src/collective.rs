//! Collectives: schedules that Python plans, carried out without it.

pub mod codecs;
pub mod commands;
mod holds;
pub mod in_flight;
pub mod kernels;
mod path_choice;
mod progress;
pub mod run;
mod schedule;
mod send_queue;
mod unacknowledged;
