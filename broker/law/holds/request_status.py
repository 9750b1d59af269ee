"""Show the inbound direction: the plan by class, which the IFB gets as well, and the alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping

from broker.law.capacity.inbound import InboundEstimate
from broker.law.inbound_state import IngressState
from broker.law.sharing.promises import LENDER, promises
from broker.law.sharing.water_filling import Claim, allocate
from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, BrokerThere, ClassAllocation, InterfaceAllocation, SenderSample
from broker.policy.types import InterfacePolicy, Policy
from hive_qos.units import format_rate

ALARMS_MAX = 64
"""The most senders with alarms: more than are held back at once."""


def allocation(
    name: str, state: IngressState, policy: Policy, estimate: InboundEstimate, why: Reason,
    allowance: int | None, *, in_kernel: bool,
) -> InterfaceAllocation:  # fmt: skip
    """The plan by class, for the status and the IFB; `allowance` is all storage's rate, None where it is free."""
    rate = estimate.rate_bits_per_s
    wanted = []
    for entry in policy.classes:
        own = promises(entry, rate)
        low = own.floor if entry.name == LENDER else own.guarantee
        wanted.append(Claim(1.0, own.floor, low, own.ceiling, low))
    rates = allocate(wanted, capacity_bits_per_s=rate)
    classes = []
    for entry, kept in zip(policy.classes, rates, strict=True):
        own = promises(entry, rate)
        storage = entry.name == LENDER
        ceil = max(kept, min(own.ceiling, allowance or own.ceiling)) if storage else max(kept, own.ceiling)
        throughput: int | None = None
        if storage:
            throughput = int(math.fsum(sender.rate_bits_per_s for sender in state.senders))
        elif entry.name == "compute" and state.bursts and state.training_bits_per_s is not None:
            throughput = int(state.training_bits_per_s)
        classes.append(
            ClassAllocation(
                name=entry.name,
                rate_bits_per_s=kept,
                ceil_bits_per_s=ceil,
                priority=entry.priority,
                guarantee_bits_per_s=own.guarantee,
                floor_bits_per_s=own.floor,
                ceiling_bits_per_s=own.ceiling,
                demand_bits_per_s=ceil,
                share_bits_per_s=ceil,
                throughput_bits_per_s=throughput,
                backlog_bytes=None,
                dropped_packets=None,
                reason=why if storage else Because.LINK_IS_FREE(ceiling_bits_per_s=own.ceiling),
            )
        )
    return InterfaceAllocation(
        name, "ingress", rate, estimate.source, estimate.reason, tuple(classes), in_kernel=in_kernel
    )


def alarms(
    interface: InterfacePolicy, reported: Mapping[str, SenderSample], policy: Policy, estimate: InboundEstimate,
    base: tuple[int, str], *, in_kernel: bool, holding: bool,
) -> tuple[Alarm, ...]:  # fmt: skip
    """The alarms: no speed or too little, senders without a hold, brokers that refuse.

    `base` is the rate that the operator or the driver names, and its source.
    """
    found = []
    if estimate.source == "fallback":
        found.append(Alarm("ingress-unknown", interface.name, Because.INGRESS_UNKNOWN().text))
    rate, (named, by) = estimate.state.estimate.rate_bits_per_s, base
    promised = sum(promises(entry, named).guarantee for entry in policy.classes)
    if by != "fallback" and rate < promised:
        text = (
            f"{format_rate(rate)} came in while packets waited in front of our link, the guarantees of its "
            f"{format_rate(named)} sum to {format_rate(promised)}; each is kept as a part of what is there"
        )
        found.append(Alarm("ingress-below-guarantees", interface.name, text))
    for sample in sorted(reported.values(), key=lambda entry: entry.address)[:ALARMS_MAX] if holding else ():
        subject = f"{interface.name}/{sample.address}"
        if sample.broker is BrokerThere.NO and not in_kernel:
            text = "sends storage to us and has no broker; write `ingress` with a rate, or run a broker there"
            found.append(Alarm("sender-without-broker", subject, text))
        elif sample.refused:
            kept = f"; it keeps {format_rate(sample.granted_bits_per_s)}" if sample.granted_bits_per_s else ""
            found.append(Alarm("hold-refused", subject, f"its broker does not hold storage back as asked{kept}"))
    return tuple(found)
