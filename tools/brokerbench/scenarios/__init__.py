"""What is measured, a scenario a file: `measure` leaves its records in the run.

shares    training beside storage at the sender's, the receiver's or a remote bottleneck    fresh    starts, each judged
changing  a link that loses rate (capacity)        inbound  the same at the receiver's        jobs     two that share
faults    of brokers, links and disks              holding  asked of senders
many_flows  a thousand connections (flows)
"""
