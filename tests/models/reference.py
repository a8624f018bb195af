#!/usr/bin/env python3
"""What PyTorch itself computes for an exported model: the yardstick of the equality tests.

Micro-batch i of the two of a step is NAME.inputs.safetensors rolled by i along the last dimension. All
steps see the same two: with new ones every step Adam divides gradients that are all rounding by
their own size, and a change of 1e-16 in PyTorch's own weights is one of 1e-5 after 8 steps of
ResNet-18; with these it stays below 1e-7. NAME.f64.safetensors and NAME.f32.safetensors: `loss`, `grad.<name>` of the first
step, `loss_of_first`, the loss of its first micro-batch alone. In float64 also `param.<name>`,
`buffer.<name>` after 20 steps of AdamW (lr 1e-3, betas 0.9 0.999, eps 1e-8, weight decay 0.01 on
tensors of two or more dimensions).
With --device cuda the same is computed on the card, into NAME.f64.cuda.safetensors and so on.
Usage: reference.py --dir DIR [--device cuda] [name ...]
"""
import argparse
import pathlib

import torch
import transformers.modeling_outputs  # noqa: F401  registers the output classes of its models
from safetensors.torch import load_file, save_file
from torch.export.passes import move_to_device_pass

STEPS, MICRO_BATCHES = 20, 2
NAMES = ["gpt2", "llama", "resnet18", "skips", "gpt2_eval"]


def load(path, dtype, device):
    program = torch.export.load(path)
    if device != "cpu":
        program = move_to_device_pass(program, device)
    module = program.module()
    for node in module.graph.nodes:  # dtype arguments and constants follow the promotion
        if dtype == torch.float64:
            node.args = torch.fx.node.map_aggregate(node.args, promote)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, promote)
    module.recompile()
    return module.to(dtype)


def promote(argument):
    return torch.float64 if argument is torch.float32 else argument


def loss_of(output):
    if isinstance(output, torch.Tensor):
        return output
    if hasattr(output, "loss"):
        return output.loss
    return output["loss"] if isinstance(output, dict) else output[0]


def cast(tensor, dtype):
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def tied_names(named):
    """Names of a weight, for each name: an export lists a tied weight once a name, with equal values."""
    return {
        key: [other for other, q in named.items()
              if p.shape == q.shape and p.numel() > 1 and p.dim() > 1 and torch.equal(p, q)]
        or [key] for key, p in named.items()
    }


def trained_name(key, names, grads):
    return next((name for name in names[key] if name in grads), key)


def step(module, inputs):
    """Forward and backward of a step's micro-batches; their losses. Gradients are of the mean."""
    losses = []
    for i in range(MICRO_BATCHES):
        rolled = {k: torch.roll(v, i, -1) if v.dim() else v for k, v in inputs.items()}
        loss = loss_of(module(**rolled))
        (loss / MICRO_BATCHES).backward()
        losses.append(loss.detach())
    return torch.stack(losses)


def run(folder, name, dtype, suffix, device):
    path = folder / f"{name}.pt2"
    inputs = load_file(folder / f"{name}.inputs.safetensors")
    inputs = {k: cast(v, dtype).to(device) for k, v in inputs.items()}
    module = load(path, dtype, device)
    losses = step(module, inputs)
    result = {"loss": losses.mean(), "loss_of_first": losses[0]}
    named = dict(module.named_parameters(remove_duplicate=False))
    grads = {k: p.grad.clone() for k, p in named.items() if p.grad is not None}
    module = load(path, dtype, device)
    named = dict(module.named_parameters(remove_duplicate=False))
    names = tied_names(named)
    for key in named:  # an exported module reads a tied weight by one of its names
        trained = trained_name(key, names, grads)
        if trained in grads:
            result[f"grad.{key}"] = grads[trained]
    if dtype == torch.float64:
        unique = list({id(p): p for p in named.values()}.values())
        optimizer = torch.optim.AdamW(
            [{"params": [p for p in unique if p.dim() >= 2], "weight_decay": 0.01},
             {"params": [p for p in unique if p.dim() < 2], "weight_decay": 0.0}], lr=1e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            step(module, inputs)
            optimizer.step()
        for key in named:
            result[f"param.{key}"] = named[trained_name(key, names, grads)].detach().clone()
        for key, buffer in module.named_buffers(remove_duplicate=False):
            result[f"buffer.{key}"] = buffer.detach().clone()
    save_file({k: v.cpu().contiguous().clone() for k, v in result.items()},
              str(folder / f"{name}.{suffix}.safetensors"))
    print(name, suffix, float(result["loss"]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True, type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        where = "" if options.device == "cpu" else f".{options.device}"
        run(options.dir, name, torch.float64, f"f64{where}", options.device)
        run(options.dir, name, torch.float32, f"f32{where}", options.device)


if __name__ == "__main__":
    main()
