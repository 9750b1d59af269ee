"""How torch learns of `hive`: the name alone, so that `import torch` costs nothing and cannot break."""

from __future__ import annotations

import sys


def register_torch_backend() -> None:
    """Make `torch.distributed.init_process_group("hive")` work. Cheap, idempotent, and never raises.

    It is the entry point `torch.backends`, which `import torch` calls, and `import transport` calls it where torch is
    loaded already. Only the name is registered: what is behind it is imported when the first group is made, and a
    failure to import it is raised then, with its cause, and not from `import torch`.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not getattr(distributed, "is_available", lambda: False)():
        return  # a torch without distributed, or torch is not there yet; its import calls again
    backend = distributed.Backend
    if hasattr(backend, "HIVE"):
        return
    backend.register_backend("hive", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: object, group_options: object = None) -> object:
    try:
        from integrations.torch_backend.process_group import create
    except Exception as error:
        raise RuntimeError(
            f"the backend hive cannot be loaded: {type(error).__name__}: {error}; is hive-qos installed with all its"
            " dependencies for this Python?"
        ) from error
    return create(options, group_options)
