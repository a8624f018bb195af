"""One feature of PyTorch's exports a model: nested inputs and outputs, unusual edges, buffers,
frozen and tied weights, higher-order operators; and exports that are refused, with the words that say why.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def layers(count=4, width=16):
    return nn.ModuleList([nn.Linear(width, width) for _ in range(count)])


class Nested(nn.Module):
    """A tuple and a dictionary in, tuples, lists and dictionaries out, the sum of three losses."""

    def __init__(self):
        super().__init__()
        self.layers = layers()
        self.heads = nn.ModuleDict({"kind": nn.Linear(16, 4), "size": nn.Linear(16, 1)})

    def forward(self, pair, more, scale=2.0, flag=None):
        left, right = pair
        x = self.layers[0](left) * scale + self.layers[1](right["x"])
        y = torch.tanh(self.layers[2](x)) + more["bias"][0]
        z = self.layers[3](y)
        kind, size = self.heads["kind"](z), self.heads["size"](y)
        losses = {"kind": F.cross_entropy(kind, more["label"]),
                  "size": F.mse_loss(size, more["bias"][1]), "norm": z.pow(2).mean() * 0.1}
        return {"logits": (kind, [size, {"hidden": (x, y)}]), "losses": losses,
                "loss": sum(losses.values())}


def nested():
    return Nested(), {
        "pair": (torch.randn(4, 16), {"x": torch.randn(4, 16)}),
        "more": {"bias": [torch.randn(16), torch.randn(4, 1)], "label": torch.randint(0, 4, (4,))}}


class Edges(nn.Module):
    """Complex, boolean and integer tensors that several later layers read."""

    def __init__(self):
        super().__init__()
        self.layers = layers()
        self.embed = nn.Embedding(16, 16)
        self.phase = nn.Parameter(torch.randn(8))
        self.gain = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x, label):
        x = self.layers[0](x)
        turn = torch.polar(torch.ones_like(self.phase), self.phase)    # a complex edge
        z = torch.view_as_complex(x.view(-1, 8, 2).contiguous()) * turn
        mask = x > 0                                                  # a boolean edge
        best = x.argmax(-1)                                           # an integer edge
        x = self.layers[1](torch.view_as_real(z).flatten(1)) + self.embed(best)
        x = torch.where(mask, self.layers[2](x), x * 0.5)
        z = z * self.gain.conj() + z.abs()
        x = x + torch.view_as_real(z).reshape(-1, 16) + z.imag.repeat(1, 2)
        x = self.layers[3](x.masked_fill(mask.logical_not(), 0.25))
        rank = (mask.sum(-1) + best) % 16
        return {"loss": F.cross_entropy(x + self.embed(rank), label), "z": z, "mask": mask}


def edges():
    return Edges(), {"x": torch.randn(4, 16), "label": torch.randint(0, 16, (4,))}


class Buffers(nn.Module):
    """Buffers the forward pass writes and reads again, constants, batch norm."""

    def __init__(self):
        super().__init__()
        self.layers = layers()
        self.norm = nn.BatchNorm1d(16)
        self.average = nn.BatchNorm1d(16, momentum=0.3, affine=False)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("memory", torch.ones(3, 16), persistent=False)
        self.table = torch.linspace(0.5, 1.5, 16)

    def forward(self, x, label):
        x = self.norm(self.layers[0](x))
        self.seen += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        x = self.layers[1](x - self.mean)
        self.memory[1] = x.detach().amax(0)
        x = self.layers[2](torch.relu(x) + self.memory.mean(0)) / self.seen.float()
        x = self.average(x) * self.table * torch.tensor([0.5, 2.0]).repeat(8)
        return {"loss": F.cross_entropy(self.layers[3](x), label)}


def buffers():
    return Buffers(), {"x": torch.randn(6, 16), "label": torch.randint(0, 16, (6,))}


class Tied(nn.Module):
    """Weights of several names, one of them in three places, one transposed; scalar parameters."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.third = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.third.weight = self.first.weight
        self.shared = nn.Sequential(self.first, nn.Tanh())
        self.head = nn.Linear(16, 97, bias=False)
        self.head.weight = self.embed.weight
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.slope = nn.PReLU()

    def forward(self, input_ids, labels):
        x = self.slope(self.shared(self.embed(input_ids)))
        x = torch.tanh(self.second(x)) @ self.first.weight + self.shared(x)
        logits = self.head(self.third(x)) * self.temperature.exp()
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def tied():
    return Tied(), {"input_ids": torch.randint(0, 97, (2, 8)),
                    "labels": torch.randint(0, 97, (2, 8))}


class Frozen(nn.Module):
    """A frozen trunk, low-rank adapters from the third layer on, a trained head."""

    def __init__(self):
        super().__init__()
        self.trunk = layers(6)
        self.trunk.requires_grad_(False)
        self.down = nn.ParameterList([nn.Parameter(torch.randn(2, 16)) for _ in range(3)])
        self.up = nn.ParameterList([nn.Parameter(torch.randn(16, 2)) for _ in range(3)])
        self.head = nn.Linear(16, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x, label):
        for i, layer in enumerate(self.trunk):
            y = layer(x)
            if i >= 3:
                y = y + x @ self.down[i - 3].t() @ self.up[i - 3].t() * 0.5
            x = torch.tanh(y)
        return {"loss": F.cross_entropy(self.head(x), label)}


def frozen():
    return Frozen(), {"x": torch.randn(4, 16), "label": torch.randint(0, 4, (4,))}


class Lists(nn.Module):
    """Lists of tensors, named tuples and single elements of them, read far from where they arose."""

    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, x, label):
        first, second, third = torch.split(self.layers[0](x), [4, 4, 8], -1)
        rows = torch.unbind(self.layers[1](torch.cat([third, first, second], -1)))
        value, place = torch.max(rows[0] + rows[2], 0)
        ordered = torch.sort(rows[1])
        spread, middle = torch.std_mean(torch.stack(rows), 0)
        parts = torch.stack(list(rows)).chunk(3, dim=1)
        x = torch.cat([parts[2], parts[0], parts[1]], 1) + middle / (spread + 1)
        x = self.layers[2](x) + ordered.values * value
        x = x + x.gather(1, ordered.indices.expand(x.shape[0], -1))
        top = torch.topk(x, 5)
        x = x.scatter_add(1, top[1], top[0]) + torch.tensor_split(x, 4, 1)[2].mean()
        return {"loss": F.cross_entropy(self.layers[3](x), label), "place": place}


def lists():
    return Lists(), {"x": torch.randn(4, 16), "label": torch.randint(0, 16, (4,))}


class NoGrad(nn.Module):
    """A teacher under no_grad that a buffer remembers; the export holds set_grad_enabled."""

    def __init__(self):
        super().__init__()
        self.layers = layers()
        self.register_buffer("center", torch.zeros(16))

    def forward(self, x, label):
        x = self.layers[0](x)
        with torch.no_grad():
            teacher = torch.softmax(self.layers[1](x) - self.center, -1)
            self.center.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x = torch.tanh(self.layers[1](x)) * teacher + self.center
        with torch.no_grad():
            shift = self.layers[2](x)
            shift = shift * (shift.abs().mean() + x.view(-1)[3:7].max())
        x = self.layers[3](x + shift + self.layers[2](x * 0.5))
        return {"loss": F.cross_entropy(x, label) + F.mse_loss(x.softmax(-1), teacher)}


def no_grad():
    return NoGrad(), {"x": torch.randn(4, 16), "label": torch.randint(0, 16, (4,))}


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, x, label):
        for layer in self.layers:
            x = x + checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), x, use_reentrant=False)
        return {"loss": F.cross_entropy(x, label)}


def checkpointed():
    return Checkpointed(), {"x": torch.randn(4, 16), "label": torch.randint(0, 16, (4,))}


class Autocast(nn.Module):
    def __init__(self, enabled):
        super().__init__()
        self.layers = layers()
        self.enabled = enabled

    def forward(self, x, label):
        x = self.layers[0](x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            x = torch.tanh(self.layers[1](x))
        return {"loss": F.cross_entropy(self.layers[2](x).float(), label)}


def autocast_off():
    return Autocast(False), {"x": torch.randn(4, 16), "label": torch.randint(0, 16, (4,))}


MODELS = {
    "nested": nested, "edges": edges, "buffers": buffers, "tied": tied, "frozen": frozen,
    "lists": lists, "no_grad": no_grad, "checkpointed": checkpointed,
    "autocast_off": autocast_off,
}


@torch.library.custom_op("zoo::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


class Custom(nn.Module):
    def forward(self, x):
        return double(x).mean()


class Waves(nn.Module):
    def forward(self, x):
        return x.sin().mean()


class DataDependent(nn.Module):
    def forward(self, x):
        return x[x > 0].mean()


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)).mean()


def export_refused(folder):
    """Exports that weft refuses: zoo_test.cpp knows the words."""
    x, label = torch.randn(4, 16), torch.randint(0, 16, (4,))
    columns = torch.export.Dim("columns", max=64)
    refused = {
        "custom_op": (Custom(), {"x": x}, None),
        "autocast_bf16": (Autocast(True), {"x": x, "label": label}, None),
        "dynamic_columns": (Waves(), {"x": x}, {"x": {1: columns}}),
        "data_dependent": (DataDependent(), {"x": x}, None),
        "branches": (Branches(), {"x": x}, None),
    }
    for name, (model, inputs, shapes) in refused.items():
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False)
        torch.export.save(program, folder / f"{name}.pt2")
