"""Training on machines that come and go, beside DDP over Gloo and beside torchrun's elastic restart.

`python -m tools.volatilebench` measures; `--report-only` computes every figure again from the raw records alone. It
stands on `tools.bench` (processes, records, turns), `tools.collectivesbench` (networks, tasks) and
`tools.brokerbench` (storage, brokers).

    settings    how much of everything: a whole run, or a quick one
    algorithms  who competes                    crew        members in the hosts of a lab, and their register
    loss        every algorithm on each network: loss against tokens, seconds and bytes
    checks      what the papers' results allow to check, with its bound; in one process
    churn       members lost, links cut, sites apart; and torchrun's restart
    joiner      a member fetches the state while storage floods
    programs/   the processes                   figures     arithmetic on raw records, pure
    goals       what has to be, beside what was found
    report      figures and goals as JSON       table       what a person sees
"""
