#!/usr/bin/env python3
"""Exports the small models of the tests with plain PyTorch: NAME.pt2 and NAME.inputs.safetensors.

Every model's scalar output is a loss. Usage: export_models.py --out DIR [name ...]
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


def gpt2_config(dropout):
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=97, n_positions=32, n_embd=32, n_layer=3, n_head=4, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
    )


def tokens(batch=2, length=16):
    return torch.randint(0, 97, (batch, length))


def gpt2(dropout=0.0):
    from transformers import GPT2LMHeadModel

    ids = tokens()
    return GPT2LMHeadModel(gpt2_config(dropout)), {"input_ids": ids, "labels": ids.clone()}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )
    ids = tokens()
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids.clone()}


class Classifier(nn.Module):
    """An image model and the loss on its logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, image, label):
        logits = self.net(image)
        return {"loss": F.cross_entropy(logits, label), "logits": logits}


def resnet18():
    import torchvision

    net = torchvision.models.resnet18(num_classes=10)
    return Classifier(net), {"image": torch.randn(4, 3, 32, 32), "label": torch.randint(0, 10, (4,))}


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        return self.b(F.relu_(self.a(x)))


class Skips(nn.Module):
    """Long skips, a tower used twice, in-place operators on views, constants and buffers."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.tower = Tower(width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.head = nn.Linear(2 * width, 4)
        self.register_buffer("scale", torch.full((width,), 0.5), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.constant = torch.linspace(-1, 1, width)

    def forward(self, left, right, label):
        self.calls += 1
        a, b = self.tower(self.stem(left)), self.tower(self.stem(right))
        x = a + b
        skips = []
        for layer in self.mid:
            x = torch.tanh(layer(x)) * self.scale
            skips.append(x)
        y = x + skips[0] * torch.tensor(0.25)
        y = y.clone()
        y[:, 2:6].mul_(2.0)                    # in-place on a view of y
        y.view(-1)[1::3].add_(skips[1].reshape(-1)[1::3])
        row = y[0]                             # a view read after y is written again
        y.relu_()
        y = y + row + self.constant
        y.narrow(1, 0, 8).add_(a[:, :8])
        low, high = torch.split(y, 8, dim=1)   # a list of views
        y = torch.cat([high, low], dim=1) - b
        logits = self.head(torch.cat([y, skips[2] - a], dim=1))
        logits.sub_(logits.max(dim=1, keepdim=True)[0].detach())
        return {"loss": F.cross_entropy(logits, label), "logits": logits}


def skips():
    inputs = {
        "left": torch.randn(6, 8), "right": torch.randn(6, 8), "label": torch.randint(0, 4, (6,)),
    }
    return Skips(), inputs


MODELS = {
    "gpt2": gpt2,
    "llama": llama,
    "resnet18": resnet18,
    "skips": skips,
    "gpt2_dropout": lambda: gpt2(0.1),
    "gpt2_eval": lambda: gpt2(0.1),
}


def export(name, make, folder):
    torch.manual_seed(7)
    model, inputs = make()
    model.train(not name.endswith("_eval"))
    program = torch.export.export(model, (), inputs, strict=False)
    torch.export.save(program, folder / f"{name}.pt2")
    # Nested inputs are called as the export calls them.
    leaves = torch.utils._pytree.tree_leaves(inputs)
    names = program.graph_signature.user_inputs
    named = {k: v for k, v in zip(names, leaves, strict=True) if isinstance(v, torch.Tensor)}
    save_file({k: v.contiguous() for k, v in named.items()},
              str(folder / f"{name}.inputs.safetensors"))
    print(name, len(program.graph.nodes), "nodes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=[])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or MODELS:
        export(name, MODELS[name], options.out)


if __name__ == "__main__":
    main()
