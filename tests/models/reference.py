#!/usr/bin/env python3
"""What PyTorch itself computes for an exported model: the yardstick of the equality tests.

Micro-batch i of the two of a step is NAME.inputs.safetensors rolled by i along the last dimension.
All steps see the same two: with new ones every step Adam divides gradients that are all rounding by
their own size, and a change of 1e-16 in PyTorch's own weights is one of 1e-5 after 8 steps of
ResNet-18; with these it stays below 1e-7.

NAME.f64.safetensors and NAME.f32.safetensors: `loss`, `grad.<name>` and `updated.<name>` of the
first step, `loss_of_first`, the loss of its first micro-batch alone. In float64 with training also
`param.<name>`, `buffer.<name>` after 20 steps of AdamW (lr 1e-3, betas 0.9 0.999, eps 1e-8, weight
decay 0.01 on tensors of two or more dimensions).
NAME.fp16.safetensors: 20 steps of SGD (lr 1e-2) with torch.autocast and torch.amp.GradScaler on the
float32 model, SCALER's settings: `losses`, `scales` (of each step), `skipped` (0 or 1 of each)
and `param.<name>` at the end. The first scale overflows, so steps are skipped.
With --device cuda the same is computed on the card, into NAME.f64.cuda.safetensors and so on.
Usage: reference.py --dir DIR [--device cuda] [name ...]
"""
import argparse
import json
import pathlib
import zipfile

import torch
import torch.utils._pytree
import transformers.modeling_outputs  # noqa: F401  registers the output classes of its models
from safetensors.torch import load_file, save_file
from torch.export.passes import move_to_device_pass

STEPS, MICRO_BATCHES = 20, 2
SCALER = {"init_scale": 2.0 ** 20, "growth_interval": 4}
NAMES = ["gpt2", "llama", "resnet18", "skips", "gpt2_eval"]


class Program:
    """An exported program to run in `dtype`; all its float32 tensors follow, dtype arguments too."""

    def __init__(self, path, dtype, device):
        program = torch.export.load(path)
        self.spec, self.names = program.call_spec.in_spec, program.graph_signature.user_inputs
        if device != "cpu":
            program = move_to_device_pass(program, device)
        self.module = program.module()
        if device != "cpu":
            self.reshape()
        if dtype == torch.float64:
            self.widen()
        self.names_of = tied_names(path)

    def reshape(self):
        """A view that fitted the memory layout of the CPU's kernels need not fit the card's."""
        for graph_module in self.module.modules():
            if isinstance(graph_module, torch.fx.GraphModule):
                for node in graph_module.graph.nodes:
                    if node.target is torch.ops.aten.view.default:
                        node.target = torch.ops.aten.reshape.default
                graph_module.recompile()

    def forget_dtypes(self):
        """Without the asserts of an export that every tensor has the dtype it had."""
        for graph_module in self.module.modules():
            if isinstance(graph_module, torch.fx.GraphModule):
                for node in list(graph_module.graph.nodes):
                    if node.target is torch.ops.aten._assert_tensor_metadata.default:
                        graph_module.graph.erase_node(node)
                graph_module.recompile()
        return self

    def widen(self):
        graphs = [m for m in self.module.modules() if isinstance(m, torch.fx.GraphModule)]
        for graph_module in graphs:
            for node in graph_module.graph.nodes:
                node.args = torch.fx.node.map_aggregate(node.args, promote)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, promote)
            graph_module.recompile()
        wide = {}
        for owner in self.module.modules():
            for held in (owner._parameters, owner._buffers, owner.__dict__):
                for key, tensor in held.items():
                    if isinstance(tensor, torch.Tensor):
                        held[key] = wide.setdefault(id(tensor), widened(tensor))

    def __call__(self, inputs):
        leaves = [inputs.get(name) if isinstance(name, str) else name for name in self.names]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self.spec)
        return self.module(*args, **kwargs)

    def parameters(self):
        return dict(self.module.named_parameters(remove_duplicate=False))

    def trained_name(self, key, grads):
        """An exported module reads a tied weight by one of its names."""
        names = [key, *self.names_of.get(key, [])]
        return next((name for name in names if name in grads), key)


def widened(tensor):
    wide = cast(tensor.detach(), torch.float64)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(wide, tensor.requires_grad)
    return wide


def promote(argument):
    return torch.float64 if argument is torch.float32 else argument


def loss_of(output):
    if isinstance(output, torch.Tensor):
        return output
    if hasattr(output, "loss"):
        return output.loss
    return output["loss"] if isinstance(output, dict) else output[0]


def cast(tensor, dtype):
    """float32 becomes `dtype`, complex64 the complex type beside it."""
    if tensor.is_complex():
        return tensor.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def tied_names(path):
    """All names of a weight, for each name: tied ones share a file of the archive."""
    archive = zipfile.ZipFile(path)
    config = next(n for n in archive.namelist() if n.endswith("weights/model_weights_config.json"))
    files = {k: v["path_name"] for k, v in json.loads(archive.read(config))["config"].items()}
    return {key: [k for k, v in files.items() if v == file] for key, file in files.items()}


def step(program, inputs, scaled=lambda loss: loss, half_on=None):
    """Forward and backward of a step's micro-batches; their losses. Gradients are of the mean."""
    losses = []
    for i in range(MICRO_BATCHES):
        rolled = {k: torch.roll(v, i, -1) if v.dim() else v for k, v in inputs.items()}
        with torch.autocast(half_on or "cpu", torch.float16, enabled=half_on is not None):
            loss = loss_of(program(rolled))
        scaled(loss / MICRO_BATCHES).backward()
        losses.append(loss.detach())
    return torch.stack(losses)


def optimizer_of(program, kind, lr):
    unique = {id(p): p for p in program.parameters().values()}.values()
    unique = [p for p in unique if p.requires_grad]
    return kind([{"params": [p for p in unique if p.dim() >= 2], "weight_decay": 0.01},
                 {"params": [p for p in unique if p.dim() < 2], "weight_decay": 0.0}], lr=lr)


def train_fp16(program, inputs, device):
    # Not Adam: where a gradient is all rounding, it divides that by its own size.
    optimizer = optimizer_of(program, torch.optim.SGD, 1e-2)
    scaler = torch.amp.GradScaler(device, **SCALER)
    losses, scales, skipped = [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(step(program, inputs, scaler.scale, device).mean())
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        skipped.append(float(scaler.get_scale() < scales[-1]))
    named = program.parameters()
    grads = {key for key, parameter in named.items() if parameter.grad is not None}
    result = {f"param.{key}": named[program.trained_name(key, grads)].detach() for key in named}
    return result | {"losses": torch.stack(losses), "scales": torch.tensor(scales),
                     "skipped": torch.tensor(skipped)}


def train(program, inputs, grads):
    named = program.parameters()
    optimizer = optimizer_of(program, torch.optim.AdamW, 1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        step(program, inputs)
        optimizer.step()
    result = {f"param.{key}": named[program.trained_name(key, grads)].detach() for key in named}
    for key, buffer in program.module.named_buffers(remove_duplicate=False):
        result[f"buffer.{key}"] = buffer.detach()
    return result


def run(folder, name, dtype, suffix, device, training):
    path = folder / f"{name}.pt2"
    inputs = load_file(folder / f"{name}.inputs.safetensors")
    inputs = {k: cast(v, dtype).to(device) for k, v in inputs.items()}
    torch.set_default_dtype(dtype)  # tensors the graph makes of nothing
    program = Program(path, dtype, device)
    before = {k: v.clone() for k, v in program.module.named_buffers()}
    losses = step(program, inputs)
    result = {"loss": losses.mean(), "loss_of_first": losses[0]}
    grads = {k: p.grad.clone() for k, p in program.parameters().items() if p.grad is not None}
    for key in program.parameters():
        trained = program.trained_name(key, grads)
        if trained in grads:
            result[f"grad.{key}"] = grads[trained]
    for key, buffer in program.module.named_buffers():
        if not torch.equal(buffer, before[key]):
            result[f"updated.{key}"] = buffer.detach()
    if training and dtype == torch.float64:
        result |= train(Program(path, dtype, device), inputs, grads)
    torch.set_default_dtype(torch.float32)
    save(folder, name, suffix, result)
    print(name, suffix, float(result["loss"]), flush=True)


def save(folder, name, suffix, result):
    save_file({k: real(v).cpu().contiguous().clone() for k, v in result.items()},
              str(folder / f"{name}.{suffix}.safetensors"))


def run_fp16(folder, name, suffix, device):
    inputs = load_file(folder / f"{name}.inputs.safetensors")
    inputs = {k: v.to(device) for k, v in inputs.items()}
    program = Program(folder / f"{name}.pt2", torch.float32, device).forget_dtypes()
    result = train_fp16(program, inputs, device)
    save(folder, name, suffix, result)
    print(name, suffix, float(result["losses"][-1]), int(result["skipped"].sum()), "skipped",
          flush=True)


def real(tensor):
    """safetensors has no complex128: a complex tensor is stored as pairs of its parts."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def compare_with(folder, name, device, training):
    where = "" if device == "cpu" else f".{device}"
    run(folder, name, torch.float64, f"f64{where}", device, training)
    run(folder, name, torch.float32, f"f32{where}", device, training)
    if training:
        run_fp16(folder, name, f"fp16{where}", device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True, type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        compare_with(options.dir, name, options.device, training=True)


if __name__ == "__main__":
    main()
