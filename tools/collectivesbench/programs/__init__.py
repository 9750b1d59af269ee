"""The processes that are measured: one rank each."""
