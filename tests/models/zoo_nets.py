"""Nets of shapes no pinned library has a class for: U-Net, stereo, DiT, recurrent, graph, MoE."""
import torch
import torch.nn.functional as F
from torch import nn


def block(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs),
                         nn.SiLU())


class UNet(nn.Module):
    def __init__(self, widths=(8, 16, 32)):
        super().__init__()
        pairs = list(zip((3,) + widths, widths))
        self.down = nn.ModuleList([block(a, b) for a, b in pairs])
        self.mid = block(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(b, b, 2, stride=2) for _, b in reversed(pairs)])
        self.merge = nn.ModuleList(
            [block(2 * b, a if a != 3 else b) for a, b in reversed(pairs)])
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, image, label):
        skips, x = [], image
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return {"loss": F.cross_entropy(self.head(x), label)}


def unet():
    return UNet(), {"image": torch.randn(2, 3, 32, 32), "label": torch.randint(0, 4, (2, 32, 32))}


def correlation(left, right, reach):
    """Cost volume: the mean product of left with right moved by 0 ... reach - 1 columns."""
    padded, width = F.pad(right, (reach - 1, 0)), left.shape[-1]
    return torch.stack([(left * padded[..., reach - 1 - d:reach - 1 - d + width]).mean(1)
                        for d in range(reach)], 1)


def warp(image, disparity):
    """The right image seen from the left: columns moved by the disparity."""
    batch, _, height, width = image.shape
    rows = torch.linspace(-1, 1, height).view(1, height, 1).expand(batch, height, width)
    columns = torch.linspace(-1, 1, width).view(1, 1, width).expand(batch, height, width)
    columns = columns - 2 * disparity.squeeze(1) / (width - 1)
    return F.grid_sample(image, torch.stack([columns, rows], -1), align_corners=True)


class DisparityNet(nn.Module):
    def __init__(self, inputs, width=8, reach=6, volume=True):
        super().__init__()
        self.reach, self.volume = reach, volume
        self.conv1 = block(inputs, width, 2)
        self.redirect = nn.Conv2d(width, 4, 1)
        self.conv2 = block(4 + reach if volume else width, 2 * width, 2)
        self.conv3 = block(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.coarse = nn.Conv2d(2 * width, 1, 3, 1, 1)
        self.fine = nn.Conv2d(2 * width + 1, 1, 3, 1, 1)

    def forward(self, left, right=None):
        a = self.conv1(left)
        if self.volume:
            b = self.conv1(right)
            cost = F.leaky_relu(correlation(a, b, self.reach), 0.1)
            x = self.conv2(torch.cat([F.leaky_relu(self.redirect(a), 0.1), cost], 1))
        else:
            x = self.conv2(a)
        x = self.conv3(x)
        coarse = self.coarse(x)
        up = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        fine = self.fine(torch.cat([self.up(x), a, up], 1))
        return F.interpolate(fine, scale_factor=2, mode="bilinear", align_corners=False), coarse


class Stereo(nn.Module):
    """FADNet's shape: a net with a cost volume, then one that refines what warping leaves over."""

    def __init__(self):
        super().__init__()
        self.first = DisparityNet(3)
        self.second = DisparityNet(3 + 3 + 3 + 1 + 1, volume=False)

    def forward(self, left, right, disparity):
        first, coarse = self.first(left, right)
        seen = warp(right, first)
        error = torch.sqrt(((left - seen) ** 2).sum(1, keepdim=True) + 1e-6)
        residual, coarse2 = self.second(torch.cat([left, right, seen, error, first], 1))
        final = F.relu(first + residual)
        small = F.avg_pool2d(disparity, 4)
        losses = (F.smooth_l1_loss(final, disparity), F.smooth_l1_loss(first, disparity),
                  F.smooth_l1_loss(coarse, small), F.smooth_l1_loss(coarse2, small))
        return {"loss": losses[0] + 0.5 * losses[1] + 0.25 * (losses[2] + losses[3]),
                "disparity": (final, {"first": first, "coarse": [coarse, coarse2]})}


def stereo():
    return Stereo(), {"left": torch.randn(2, 3, 16, 32), "right": torch.randn(2, 3, 16, 32),
                      "disparity": torch.rand(2, 1, 16, 32) * 6}


class DiTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"),
                                 nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, 1)
        y = self.norm1(x) * (1 + scale1[:, None]) + shift1[:, None]
        batch, length, width = x.shape
        q, k, v = self.qkv(y).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + gate1[:, None] * self.out(y)
        y = self.norm2(x) * (1 + scale2[:, None]) + shift2[:, None]
        return x + gate2[:, None] * self.mlp(y)


class DiT(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.register_buffer("position", torch.randn(1, 16, width))
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(11, width)
        self.blocks = nn.ModuleList([DiTBlock(width, 4) for _ in range(depth)])
        self.final = nn.Linear(width, 16)

    def forward(self, latent, time, label, noise):
        x = self.patch(latent).flatten(2).transpose(1, 2) + self.position
        frequency = torch.exp(torch.arange(16) * (-9.2 / 16))
        angle = time[:, None] * frequency
        condition = self.time(torch.cat([angle.cos(), angle.sin()], -1)) + self.label(label)
        for layer in self.blocks:
            x = layer(x, condition)
        x = self.final(x).view(-1, 4, 4, 2, 2, 4)
        x = torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 4, 8, 8)
        return {"loss": F.mse_loss(x, noise), "noise": x}


def dit():
    return DiT(), {"latent": torch.randn(2, 4, 8, 8), "time": torch.rand(2) * 100,
                   "label": torch.randint(0, 11, (2,)), "noise": torch.randn(2, 4, 8, 8)}


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embed = nn.Embedding(97, 16)
        self.net = kind(16, 24, num_layers=2, batch_first=True, **options)
        self.head = nn.Linear(48 if options.get("bidirectional") else 24, 97)

    def forward(self, input_ids, labels):
        states, last = self.net(self.embed(input_ids))
        logits = self.head(states)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "last": last}


def recurrent(kind, **options):
    ids = torch.randint(0, 97, (2, 8))
    return Recurrent(kind, **options), {"input_ids": ids, "labels": ids.clone()}


class GraphSAGE(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(a, width) for a in (8, width, width)])
        self.near = nn.ModuleList([nn.Linear(a, width) for a in (8, width, width)])
        self.head = nn.Linear(2 * width, 4)

    def forward(self, features, edges, label):
        source, target = edges[0], edges[1]
        x, nodes = features, features.shape[0]
        ones = torch.ones(edges.shape[1], 1)
        degree = torch.zeros(nodes, 1).index_add(0, target, ones).clamp(min=1)
        for i, (own, near) in enumerate(zip(self.own, self.near)):
            messages = x.index_select(0, source)
            if i == 1:  # max instead of mean
                index = target[:, None].expand_as(messages)
                mean = torch.zeros_like(x).scatter_reduce(0, index, messages, "amax",
                                                          include_self=False)
            else:
                mean = torch.zeros(nodes, x.shape[1]).index_add(0, target, messages) / degree
            x = F.normalize(F.relu(own(x) + near(mean)), dim=-1)
        pooled = torch.zeros(nodes, x.shape[1])
        pooled.scatter_add_(0, target[:, None].expand(-1, x.shape[1]), x[source])
        return {"loss": F.cross_entropy(self.head(torch.cat([x, pooled], 1)), label)}


def graphsage():
    return GraphSAGE(), {"features": torch.randn(12, 8), "edges": torch.randint(0, 12, (2, 40)),
                         "label": torch.randint(0, 4, (12,))}


class MixtureOfExperts(nn.Module):
    """Top 2 of 4 experts of a fixed capacity: what comes late is dropped, shapes are static."""

    def __init__(self, width=16, experts=4, capacity=6):
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.embed = nn.Embedding(97, width)
        self.norm = nn.RMSNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / 4)
        self.gate = nn.Parameter(torch.randn(experts, width, 2 * width) / 4)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / 4)
        self.head = nn.Linear(width, 97)

    def experts_of(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        one_hot = F.one_hot(chosen.flatten(), self.experts)
        slot = (one_hot.cumsum(0) - 1).gather(1, chosen.flatten()[:, None]).squeeze(1)
        kept = slot < self.capacity
        place = torch.where(kept, chosen.flatten() * self.capacity + slot,
                            self.experts * self.capacity)
        rows = x.repeat_interleave(2, 0)
        held = torch.zeros(self.experts * self.capacity + 1, x.shape[1]).index_add(0, place, rows)
        held = held[:-1].view(self.experts, self.capacity, -1)
        out = torch.bmm(F.silu(torch.bmm(held, self.gate)) * torch.bmm(held, self.up), self.down)
        out = torch.cat([out.flatten(0, 1), torch.zeros(1, x.shape[1])])[place]
        out = (out * (weights.flatten() * kept)[:, None]).view(-1, 2, x.shape[1]).sum(1)
        balance = self.experts * (one_hot.to(x.dtype).mean(0) * self.router(x).softmax(-1).mean(0))
        return out, balance.sum()

    def forward(self, input_ids, labels):
        x = self.embed(input_ids).flatten(0, 1)
        out, balance = self.experts_of(self.norm(x))
        loss = F.cross_entropy(self.head(x + out), labels.flatten())
        return {"loss": loss + 0.01 * balance, "balance": balance}


def moe():
    ids = torch.randint(0, 97, (2, 8))
    return MixtureOfExperts(), {"input_ids": ids, "labels": ids.clone()}


MODELS = {
    "unet": unet, "stereo": stereo, "dit": dit,
    "lstm": lambda: recurrent(nn.LSTM, bidirectional=True),
    "gru": lambda: recurrent(nn.GRU),
    "graphsage": graphsage, "moe": moe,
}
