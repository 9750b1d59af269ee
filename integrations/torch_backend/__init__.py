"""The torch.distributed backend `hive`: one core, two thin adapters (torch 2.13 and torch 2.15), torch's types outside.

    registration   tells torch of the backend; cheap, and never breaks `import torch`
    adapters       what torch calls: method names and argument shapes of each version
    overloads      the ways to call one method, brought to a single form
    core           the collectives, over `transport.Group`
    work           a running operation as torch wants to see it: wait, future, exception
    staging        tensors to plain memory and back: non-contiguous ones, GPU ones
    gpu            the streams, events and copies that staging needs of CUDA
    reduction      torch's reduce operations to the transport's
    rendezvous     torch's store as the transport's meeting place; the address that peers can reach us at
    errors         our errors, which are RuntimeErrors as well, as torch's own are

This package is the only one that imports torch, and is imported only once torch is.
"""
