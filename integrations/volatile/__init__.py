"""Training over members that come and go: torch's store as the register, and algorithms that need little network."""

from integrations.volatile.a2cid2 import A2CiD2 as A2CiD2
from integrations.volatile.asynchronous import AsyncDiLoCo as AsyncDiLoCo
from integrations.volatile.diloco import DiLoCo as DiLoCo
from integrations.volatile.diloco import LocalSGD as LocalSGD
from integrations.volatile.fragments import strided as strided
from integrations.volatile.partial_mean import PartialMean as PartialMean
from integrations.volatile.site import Site as Site
from integrations.volatile.streaming import StreamingDiLoCo as StreamingDiLoCo
from integrations.volatile.torch_store import serve_register as serve_register
from integrations.volatile.torch_store import torch_register as torch_register
from transport.volatile.group import VolatileGroup as VolatileGroup
