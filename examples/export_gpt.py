#!/usr/bin/env python3
"""Exports a GPT-2 language model, Hugging Face's own class, with plain PyTorch.

The model takes tokens and labels and returns its loss; Hugging Face's loss shifts the labels by one
itself, so in a job file both inputs are bound to the column `tokens`.
"""
import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def add_model_arguments(parser):
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=4, help="samples of a micro-batch")
    parser.add_argument("--vocab", type=int, default=256, help="256: bytes")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)


def make_gpt(args):
    torch.manual_seed(args.seed)
    config = GPT2Config(
        vocab_size=args.vocab, n_positions=args.sequence, n_embd=args.width, n_layer=args.layers,
        n_head=args.heads, resid_pdrop=args.dropout, embd_pdrop=args.dropout,
        attn_pdrop=args.dropout, bos_token_id=0, eos_token_id=0, use_cache=False)
    return GPT2LMHeadModel(config)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--eval", action="store_true", help="in eval mode: for `eval_model`")
    parser.add_argument("--out", default="gpt.pt2")
    args = parser.parse_args()

    model = make_gpt(args).train(not args.eval)
    tokens = torch.randint(args.vocab, (args.batch, args.sequence))
    exported = torch.export.export(model, (), {"input_ids": tokens, "labels": tokens.clone()})
    torch.export.save(exported, args.out)
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.out}: GPT-2, {args.layers} layers x {args.width}, {count:,} parameters, "
          f"micro-batch {args.batch} x {args.sequence} tokens")


if __name__ == "__main__":
    main()
