"""Where the transport meets frameworks. Nothing here is imported by `transport` unless torch is already loaded."""

from integrations.torch_backend.registration import register_torch_backend as register_torch_backend
