//! For tests and fuzzers alone: a path in simulated time, fixtures, and what the fuzz targets run.

pub(crate) mod fixtures;
pub mod fuzz;
pub(crate) mod simulated_path;
