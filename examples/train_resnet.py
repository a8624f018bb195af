#!/usr/bin/env python3
"""Trains the same ResNet-18 in one plain PyTorch process, for comparison with `resnet.toml`."""
import argparse
import os
import time

import numpy
import torch

from export_resnet import make_resnet


def accuracy(model, images, labels, batch):
    model.eval()
    right = 0
    with torch.no_grad():
        for i in range(0, len(images) - batch + 1, batch):
            _, logits = model(images[i:i + batch].float() / 255, labels[i:i + batch])
            right += (logits.argmax(1) == labels[i:i + batch]).sum().item()
    model.train()
    return right / (len(images) // batch * batch)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".", help="folder of the arrays")
    parser.add_argument("--batch", type=int, default=32, help="samples of a micro-batch")
    parser.add_argument("--step-batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--eval-batches", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    def load(name):
        return torch.from_numpy(numpy.load(os.path.join(args.data, name)))

    images, labels = load("train_images.npy"), load("train_labels.npy")
    count = args.eval_batches * args.batch
    held_images, held_labels = load("eval_images.npy")[:count], load("eval_labels.npy")[:count]
    model = make_resnet(args.seed).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(args.seed))
    parts, start = args.step_batch // args.batch, time.monotonic()
    for step in range(args.steps):
        total = 0.0
        for part in range(parts):
            first = (step * parts + part) * args.batch % (len(order) - args.batch)
            rows = order[first:first + args.batch]
            loss, _ = model(images[rows].float() / 255, labels[rows])
            (loss / parts).backward()
            total += loss.item() / parts
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step + 1} loss {total:.4f}", flush=True)
    print(f"{time.monotonic() - start:.1f} s, eval accuracy "
          f"{accuracy(model, held_images, held_labels, args.batch):.4f}")


if __name__ == "__main__":
    main()
