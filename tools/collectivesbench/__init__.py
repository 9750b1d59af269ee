"""Collectives beside Gloo's, on several networks, in one run on one machine.

`python -m tools.collectivesbench` measures; `--report-only` computes every figure again from the raw records alone. All
contenders are called through `torch.distributed`, and take turns: on a shared machine only what was measured within the
same minute can be compared. It stands on `tools.bench` (processes, records, turns) and `tools.lab` (networks).

    settings    how much of everything: a whole run, or a quick one
    budget      the time of a run, divided among its parts
    networks    what is measured on             contenders  who competes
    bounds      what links and processors allow, pure
    groups      process groups of all contenders            programs/   the ranks
    sweep       operations and sizes in turns: lan, uneven, sites, host
    urgent      a small urgent all-reduce while a large one is under way
    training    models trained to a loss, and while a link falls
    figures     arithmetic on raw records, pure             goals       what has to be, beside what was found
    report      figures, ratios and goals as JSON           table       what a person sees
"""
