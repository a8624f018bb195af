#!/usr/bin/env python3
"""Fashion-MNIST of Debian's package dataset-fashion-mnist as .npy arrays: one row a sample."""
import argparse
import gzip
import os

import numpy

SPLITS = {"train": "train", "eval": "t10k"}


def read_idx(path):
    """The idx format: 0, 0, type, rank, the sizes as big-endian 32-bit numbers, the elements."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    if data[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: not an idx file of bytes")
    rank = data[3]
    sizes = numpy.frombuffer(data, ">u4", rank, 4)
    return numpy.frombuffer(data, "u1", offset=4 + 4 * rank).reshape(sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--out", default=".", help="folder of the arrays")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name, prefix in SPLITS.items():
        images = read_idx(os.path.join(args.source, f"{prefix}-images-idx3-ubyte.gz"))
        labels = read_idx(os.path.join(args.source, f"{prefix}-labels-idx1-ubyte.gz"))
        numpy.save(os.path.join(args.out, f"{name}_images.npy"), images)
        numpy.save(os.path.join(args.out, f"{name}_labels.npy"), labels.astype("int64"))
        print(f"{name}: images {images.shape} {images.dtype}, labels {labels.shape}")


if __name__ == "__main__":
    main()
