"""One operator as a model: op_db_export.py makes a Case of each sample it takes.

before: every tensor the operator reads passes one node (float: times one; integers: a copy).
op: the call. after: its outputs are weighted with fixed numbers and summed into a loss, times a
trainable anchor. So there is a place to cut on both sides, every output element counts, and the
gradient of the anchor says what the outputs were even where no gradient passes the operator.
"""
import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

MAX_ELEMENTS = 20_000
# The importer drops the exporter's assertions.
DROPPED = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "_assert_async.msg"}


class Unusable(Exception):
    """A sample that cannot be a case, and why."""


def tensors_of(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def weights_for(shape, generator):
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5


class Before(nn.Module):
    def __init__(self, tensors, trainable):
        super().__init__()
        self.complex = [t.is_complex() for t in tensors]
        self.floating = [t.is_floating_point() or t.is_complex() for t in tensors]
        for i, tensor in enumerate(tensors):
            tensor = tensor.detach().resolve_conj().resolve_neg().clone(
                memory_format=torch.contiguous_format)
            if self.complex[i]:
                tensor = torch.view_as_real(tensor).clone()
            if self.floating[i] and trainable[i]:
                self.register_parameter(f"x{i}", nn.Parameter(tensor))
            else:
                self.register_buffer(f"x{i}", tensor)

    def forward(self):
        result = []
        for i, floating in enumerate(self.floating):
            x = getattr(self, f"x{i}")
            if self.complex[i]:
                x = torch.view_as_complex(x)
            result.append(x * 1.0 if floating else x.clone())
        return result


class After(nn.Module):
    def __init__(self, outputs, generator):
        super().__init__()
        self.anchor = nn.Parameter(torch.tensor(1.25, dtype=torch.float64))
        for i, output in enumerate(outputs):
            self.register_buffer(f"w{i}", weights_for(output.shape, generator))

    def forward(self, outputs):
        total = None
        for i, output in enumerate(outputs):
            if output.is_complex():
                wide = torch.view_as_real(output.to(torch.complex128) * getattr(self, f"w{i}"))
            else:
                wide = output.to(torch.float64) * getattr(self, f"w{i}")
            total = wide.sum() if total is None else total + wide.sum()
        return total * self.anchor


class Case(nn.Module):
    """call(*args, **kwargs) with the tensors of args and kwargs as weights of the model."""

    def __init__(self, call, args, kwargs, seed, trainable=True):
        super().__init__()
        self.call = call
        leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.literals = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensors = [leaves[i] for i in self.where]
        for tensor in tensors:
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
                raise Unusable("not a dense tensor")
        if sum(t.numel() for t in tensors) > MAX_ELEMENTS:
            raise Unusable("large")
        self.narrow = any(t.dtype in (torch.float32, torch.complex64) for t in tensors)
        self.before = Before(tensors, [trainable and t.requires_grad for t in tensors])
        torch.manual_seed(seed)
        outputs = self.outputs(self.before())
        if not outputs:
            raise Unusable("makes no tensor")
        if any(o.layout != torch.strided or o.is_quantized for o in outputs):
            raise Unusable("makes no dense tensor")
        if sum(o.numel() for o in outputs) > MAX_ELEMENTS:
            raise Unusable("large")
        self.after = After(outputs, torch.Generator().manual_seed(seed))

    def outputs(self, tensors):
        leaves = list(self.literals)
        for i, tensor in zip(self.where, tensors):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return tensors_of(self.call(*args, **kwargs))

    def forward(self):
        return {"loss": self.after(self.outputs(self.before()))}

    def gradients(self):
        """Loss and gradients as PyTorch computes them; None where no gradient exists."""
        self.zero_grad()
        loss = self()["loss"]
        loss.backward()
        if not torch.isfinite(loss):
            raise Unusable("its loss is not finite")
        result = {"loss": loss.detach().clone()}
        for name, parameter in self.named_parameters():
            if parameter.grad is not None:
                if not torch.isfinite(parameter.grad).all():
                    raise Unusable("its gradient is not finite")
                result[f"grad.{name}"] = parameter.grad.clone()
        return result


def gradients_on(program, device):
    """Loss and gradients of an exported case on another device."""
    module = move_to_device_pass(program, device).module()
    for node in module.graph.nodes:
        # As weft does: a view that fitted the memory of the CPU's kernels need not fit the card's.
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    loss = module()["loss"]
    loss.backward()
    result = {"loss": loss}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            result[f"grad.{name}"] = parameter.grad
    if not all(torch.isfinite(t).all() for t in result.values()):
        raise Unusable("its loss or gradient is not finite there")
    return {key: tensor.detach().cpu().clone() for key, tensor in result.items()}


def shapes_of(args, kwargs):
    """What tells two samples apart for the table: shapes, element types, scalars' presence."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    kinds = tuple((tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor)
                  else type(leaf).__name__ for leaf in leaves)
    return kinds, str(spec)


def structure_of(args, kwargs):
    leaves, spec = pytree.tree_flatten((args, kwargs))
    kinds = tuple((leaf.dim() == 0, leaf.dtype) if isinstance(leaf, torch.Tensor)
                  else type(leaf).__name__ for leaf in leaves)
    return kinds, str(spec)


def overload_name(target):
    if not isinstance(target, torch._ops.OpOverload):
        return None
    namespace, _, name = str(target).partition(".")
    name = name.removesuffix(".default")
    return name if namespace == "aten" else f"{namespace}::{name}"


def overloads_called(call, args, kwargs):
    """The overloads an export of this call will hold, without paying for an export."""
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))  # for in-place forms
    graph = make_fx(lambda: call(*args, **kwargs), pre_dispatch=True)().graph
    names = (overload_name(node.target) for node in graph.nodes if node.op == "call_function")
    return {name for name in names if name} - DROPPED


def export(case):
    """The program, the values made before and after the operator, and the overloads between."""
    program = torch.export.export(case, (), strict=False)
    before, after, between = [], [], set()
    for node in program.graph.nodes:
        name = overload_name(node.target) if node.op == "call_function" else None
        if name is None:
            continue
        path = {entry[0] for entry in node.meta.get("nn_module_stack", {}).values()}
        if "before" in path:
            before.append(node.name)
        elif "after" in path:
            after.append(node.name)
        else:
            between.add(name)
    between -= DROPPED
    return program, before, after, between
