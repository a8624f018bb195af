#!/usr/bin/env python3
"""Trains the same GPT-2 in one plain PyTorch process, for comparison with `gpt.toml`.

Same model, steps, rates, decay groups and clipping; samples are drawn in another order.
"""
import argparse
import math
import time

import torch

from export_gpt import add_model_arguments, make_gpt
from tokens import evaluate, samples


def rate(args, step):
    """Linear warm-up, then half a cosine down to --min-lr at the last step."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - 1 - args.warmup)
    return args.min_lr + (args.lr - args.min_lr) * (1 + math.cos(math.pi * done)) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--train", required=True, help="token file")
    parser.add_argument("--eval", required=True, help="token file")
    parser.add_argument("--eval-batches", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--step-batch", type=int, default=16, help="samples of a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--min-lr", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=15)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    gpt = make_gpt(args).train()
    decayed = [p for p in gpt.parameters() if p.dim() > 1]
    rest = [p for p in gpt.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": args.weight_decay},
         {"params": rest, "weight_decay": 0.0}], lr=args.lr)
    data, held_out = samples(args.train, args.sequence), samples(args.eval, args.sequence)
    parts = args.step_batch // args.batch
    generator = torch.Generator().manual_seed(args.seed)
    order = torch.randperm(len(data), generator=generator)
    at, start = 0, time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(args, step)
        total = 0.0
        for _ in range(parts):
            if at + args.batch > len(order):
                order, at = torch.randperm(len(data), generator=generator), 0
            tokens = data[order[at:at + args.batch]]
            at += args.batch
            loss = gpt(input_ids=tokens, labels=tokens).loss / parts
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step + 1} loss {total:.4f}", flush=True)
    seconds = time.monotonic() - start
    speed = args.steps * args.step_batch * args.sequence / seconds
    print(f"{seconds:.1f} s, {speed:.0f} tokens/s")
    print(f"eval loss {evaluate(gpt, held_out, args.batch, args.eval_batches):.6f}")


if __name__ == "__main__":
    main()
