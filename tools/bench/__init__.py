"""The benchmarks: the engines of the transport beside what everybody has, in one run on one machine.

`python -m tools.bench` measures, `python -m tools.bench --report-only` computes every figure again from the raw
records alone. A measurement is always two sides, each a process of its own; the contenders take turns, because on a
shared machine only what was measured within the same minute can be compared. Who does what:

    settings    how much of everything: a whole run, or a quick one
    contenders  who competes, and who is not here and why
    place       where a side runs: this machine's loopback, or a host of the lab
    side        the controller's end of a process    programs/  the processes' own ends
    iperf       iperf3 as a contender                machine    CPU seconds of the whole machine
    flows, latency, memory, congestion    the scenarios, which write raw records
    records     the raw records                      figures    arithmetic on them, pure
    report      figures, ratios and goals as JSON    table      what a person sees
"""
