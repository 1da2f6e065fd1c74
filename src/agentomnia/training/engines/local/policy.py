"""The policy network: Qwen3's architecture, small, with weights that load into `Qwen3ForCausalLM`.

Why own code where transformers has the same network: the trainer and the sampler share one forward pass that leaves
attention to a memory, so that a group's common prompt is computed once, in training with gradients too. At this size
what decides success is whether copying is learned; `mimetic.py` makes the weights to start from.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentomnia.training.engines.local.kernels import RMSNorm, rotate


class Memory(Protocol):
    """Where a forward pass keeps keys and values, and what each of its tokens attends to."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of new tokens.

        Args:
            layer: its number.
            q: (rows, heads, n, size) queries.
            k: (rows, key-value heads, n, size) keys of the same tokens.
            v: likewise their values.

        Returns:
            (rows, heads, n, size).
        """
        ...


class Fresh:
    """No earlier tokens: each row begins here, and each token sees itself and those before it in its row."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@dataclass(frozen=True)
class PolicyShape:
    """Sizes of the network, named as in transformers' `Qwen3Config`."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 384
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1024

    def config(self) -> dict[str, object]:
        """A `config.json` that transformers reads."""
        return {
            **asdict(self),
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "attention_bias": False,
            "torch_dtype": "float32",
            "eos_token_id": 2,  # places of `<|im_end|>` and `<|endoftext|>` in `tokenizer.SPECIAL`
            "pad_token_id": 0,
        }


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys, and rotary positions."""

    def __init__(self, shape: PolicyShape) -> None:
        """Projections as Qwen3 names them."""
        super().__init__()
        self.heads, self.groups, self.size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        width = shape.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, self.groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.groups * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=False)
        self.q_norm = RMSNorm(self.size, eps=shape.rms_norm_eps)
        self.k_norm = RMSNorm(self.size, eps=shape.rms_norm_eps)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (rows, heads, positions, size), keys and values (rows, key-value heads, positions, size)."""
        rows, positions, _ = x.shape
        exact = self.q_norm.weight.dtype  # autocast makes q and k coarser than the norms' weights, which torch warns of
        q = self.q_norm(self.q_proj(x).view(rows, positions, self.heads, self.size).to(exact)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(rows, positions, self.groups, self.size).to(exact)).transpose(1, 2)
        v = self.v_proj(x).view(rows, positions, self.groups, self.size).transpose(1, 2)
        return rotate(q, *rotary), rotate(k, *rotary), v

    def merge(self, heads: Tensor) -> Tensor:
        """What the heads found (rows, heads, positions, size), projected to (rows, positions, width)."""
        rows, _, positions, _ = heads.shape
        return self.o_proj(heads.transpose(1, 2).reshape(rows, positions, -1))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, shape: PolicyShape) -> None:
        """Projections as Qwen3 names them."""
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """SwiGLU of (…, width)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One block: attention and feed-forward, each after a norm, each added."""

    def __init__(self, shape: PolicyShape) -> None:
        """Parts as Qwen3 names them."""
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)


class Body(nn.Module):
    """Embeddings, blocks and the last norm."""

    def __init__(self, shape: PolicyShape) -> None:
        """Parts as Qwen3 names them."""
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Policy(nn.Module):
    """A Qwen3 causal language model with tied embeddings; parameter names are those of `Qwen3ForCausalLM`."""

    def __init__(self, shape: PolicyShape) -> None:
        """Make the network with torch's default weights; see `mimetic.new_policy` for those to train from."""
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        inverse = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_position_embeddings).double(), inverse)
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for positions (rows, n), each (rows, 1, n, head size)."""
        cosines, sines = self.get_buffer("cosines"), self.get_buffer("sines")
        return cosines[positions].unsqueeze(1), sines[positions].unsqueeze(1)

    def forward(self, ids: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """Hidden states of new tokens.

        Args:
            ids: (rows, n) token ids.
            positions: (rows, n) their positions.
            memory: decides what each token attends to.

        Returns:
            (rows, n, width), after the last norm.
        """
        rotary = self.rotary(positions)
        x = self.model.embed_tokens(ids)
        for number, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), rotary)
            x = x + layer.self_attn.merge(memory.attend(number, q, k, v))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, vocabulary) of hidden states (…, width)."""
        return functional.linear(hidden, self.model.embed_tokens.weight)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write `config.json` and `model.safetensors`, as transformers reads them; whole or not at all."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(policy.shape.config(), indent=1) + "\n", encoding="utf-8")
    weights = {name: p.detach().contiguous() for name, p in policy.state_dict().items()}
    partial = folder / ".model.safetensors"
    partial.write_bytes(save(weights, {"format": "pt"}))
    partial.replace(folder / "model.safetensors")


def load_policy(folder: Path) -> Policy:
    """Read what `save_policy` wrote."""
    from safetensors.torch import load

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    policy = Policy(PolicyShape(**{name: config[name] for name in PolicyShape.__dataclass_fields__}))
    policy.load_state_dict(load((folder / "model.safetensors").read_bytes()))
    return policy
