#!/usr/bin/env python3
"""Exports torchvision's ResNet-18, unmodified, for Fashion-MNIST, with plain PyTorch.

Fashion-MNIST has one channel of 28 x 28, the network wants three: a wrapper repeats the channel and
adds the loss; the network inside is torchvision's class as it is. Batch normalisation sees one
micro-batch at a time.
"""
import argparse

import torch
import torchvision


class GrayResnet(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images, labels):
        logits = self.net(images.unsqueeze(1).expand(-1, 3, -1, -1))
        return torch.nn.functional.cross_entropy(logits, labels), logits


def make_resnet(seed):
    torch.manual_seed(seed)
    return GrayResnet(torchvision.models.resnet18(num_classes=10))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32, help="samples of a micro-batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="resnet.pt2")
    args = parser.parse_args()
    images = torch.rand(args.batch, 28, 28)
    labels = torch.randint(10, (args.batch,))
    exported = torch.export.export(make_resnet(args.seed).train(), (images, labels))
    torch.export.save(exported, args.out)
    print(f"{args.out}: ResNet-18, micro-batch {args.batch}")


if __name__ == "__main__":
    main()
