"""The demonstration: two hosts train while storage floods their link, and what the broker makes of it.

`python -m tools.demo run --output out/demo` runs it on real parts; `python -m tools.demo report out/demo` recomputes
every figure from the raw records alone. Who does what:

    settings   what can be chosen            network   hosts, router, links
    plan       which block follows which     storage   rsync, as daemon and as load
    trainer    the training program          trainers  how it is started
    fixed      the administrator's tree      director  the run itself
    figures    statistics from raw records   checks    is it an artefact?
    table, plot   what a person sees

What it shares with the broker's benchmark is in `tools.measure`.
"""
