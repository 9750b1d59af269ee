"""The broker's benchmark: what it does for training, storage and people beside what an administrator can do by hand.

`python -m tools.brokerbench` measures on real parts in the lab: ranks of the transport that do nothing but wait and
all_reduce, TCP flows as storage, daemons in every host. `--report-only` computes every figure again from the raw
records alone. The variants take turns within a round, because on a shared machine only what was measured within the
same minutes can be compared. Who does what:

    settings    what can be chosen, whole or quick    variants  idle, none, static, priority, quiet, brokered
    scenes      hosts, links, who floods whom         stage     one scene with everything that runs in it
    scenarios/  what is measured, a file each         programs/ rank, flood, echoes: the load
    figures/    arithmetic on records, pure
    report      figures and goals as JSON             table     what a person sees
    syncthing   Syncthing itself beside training, a measurement of its own
"""
