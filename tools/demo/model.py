"""A small byte-level transformer, and the text that it learns from: plain PyTorch, nothing of ours."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class ByteTransformer(nn.Module):
    """Predict the next byte: embedding, causal self-attention blocks, a head that shares the embedding's weights.

    Input is int64 of shape (batch, context), output float32 logits of shape (batch, context, 256). There are no
    buffers: DistributedDataParallel would send them around before every forward pass.
    """

    def __init__(self, *, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width=width, heads=heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.bytes.weight, std=0.05)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Give the logits of the byte after each."""
        hidden: torch.Tensor = self.bytes(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.bytes.weight)


class _Block(nn.Module):
    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.before_think = nn.LayerNorm(width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.mix(self.before_attention(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        thought: torch.Tensor = self.think(self.before_think(hidden))
        return hidden + thought


def write_corpus(target: Path, *, size_bytes: int) -> int:
    """Write the standard library's own source text, files in the order of their names, up to a size.

    Returns:
        The bytes written, less than `size_bytes` where the library has no more.
    """
    written = 0
    with target.open("wb") as out:
        for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
            if "site-packages" in path.parts or "dist-packages" in path.parts:
                continue
            written += out.write(path.read_bytes()[: size_bytes - written])
            if written >= size_bytes:
                break
    return written


def sample_batch(
    corpus: torch.Tensor, *, batch: int, context: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take random windows of the text: input and the same moved by one byte, both int64 of (batch, context)."""
    starts = torch.randint(corpus.numel() - context - 1, (batch,), generator=generator)
    windows = torch.stack([corpus[start : start + context + 1] for start in starts.tolist()]).long()
    return windows[:, :-1], windows[:, 1:]
