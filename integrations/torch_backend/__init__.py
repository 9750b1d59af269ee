"""The torch.distributed backend `hive`, for torch 2.13 to 2.15.

    registration        tells torch of the backend; cheap, and never breaks `import torch`
    process_group       what torch holds: a process group
    backend             the c10d Backend within it, where torch lets Python make one (2.15)
    dispatch            a group's calls by way of torch's dispatcher, where hooks see them
    c10d_methods        torch's names and argument shapes of the collectives
    overloads           the ways to call one method, brought to a single form
    collectives         the collectives, over `transport.Group`
    monitored_barrier   a barrier that names the ranks that did not come
    ddp_hook            compressed gradients in DistributedDataParallel
    operations          their order, their start, and their end with the group
    work                a running operation as torch wants to see it: wait, future, exception
    completion_threads  the threads that tell torch of finished operations
    staging             tensors to plain memory and back: non-contiguous ones, GPU ones
    gpu                 the streams, events and copies that staging needs of CUDA
    options             what `pg_options` may say of a group
    reduce_op           torch's reduce operations to the transport's
    world               connections, shared by all groups of ranks among them
    reconfiguration     a group whose ranks change (2.15)
    store_rendezvous    torch's store as the transport's meeting place; the address that peers can reach us at
    errors              our errors, which are RuntimeErrors as well, as torch's own are

This package is the only one that imports torch, and all but `registration` is imported once a group is made.
"""
