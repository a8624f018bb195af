#!/usr/bin/env python3
"""Loads weights trained by weft into plain PyTorch and prints the evaluation loss.

The file is what `weft checkpoint export` writes: the original parameter names of the exported
module. `--batches` is the number of micro-batches of [train] eval_batches; 0 is the whole file.
"""
import argparse

from safetensors.torch import load_file

from export_gpt import add_model_arguments, make_gpt
from tokens import evaluate, samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--weights", required=True, help="safetensors file")
    parser.add_argument("--data", required=True, help="token file of the evaluation split")
    parser.add_argument("--batches", type=int, default=0)
    args = parser.parse_args()

    gpt = make_gpt(args)
    gpt.load_state_dict(load_file(args.weights), strict=True)
    loss = evaluate(gpt, samples(args.data, args.sequence), args.batch, args.batches)
    print(f"eval loss {loss:.6f}")


if __name__ == "__main__":
    main()
