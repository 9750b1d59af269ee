"""Collectives: pure schedules over messages, the kernels that reduce, and the executor that drives both."""
