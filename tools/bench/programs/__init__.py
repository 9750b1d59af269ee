"""The processes that a benchmark measures: each reads orders as JSON lines and answers with raw samples."""
