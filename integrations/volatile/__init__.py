"""Training over members that come and go: torch's store as the register, and algorithms that need little network."""

from integrations.volatile.diloco import DiLoCo as DiLoCo
from integrations.volatile.diloco import LocalSGD as LocalSGD
from integrations.volatile.torch_store import torch_register as torch_register
