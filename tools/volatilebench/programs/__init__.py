"""The processes that are measured: members of a volatile group, ranks of DDP, workers of torchrun."""
