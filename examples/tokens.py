"""Token files as `weft data tokens` writes them: flat ids beside a JSON sidecar."""
import json
import os

import numpy
import torch


def samples(path, sequence):
    """Sample i is tokens [i n, i n + n), as in the peers' own feed."""
    dtype = "uint16"
    if os.path.exists(path + ".json"):
        with open(path + ".json") as file:
            dtype = json.load(file)["dtype"]
    tokens = numpy.memmap(path, dtype=dtype, mode="r")
    count = (len(tokens) - 1) // sequence
    return torch.from_numpy(tokens[:count * sequence].astype("int64")).view(count, sequence)


def evaluate(gpt, data, batch, batches=0):
    """Mean loss over whole micro-batches in file order; batches 0: all of them."""
    whole = len(data) // batch
    if batches == 0:
        batches = whole
    was_training = gpt.training
    gpt.eval()
    total = 0.0
    with torch.no_grad():
        for i in range(min(batches, whole)):
            tokens = data[i * batch:(i + 1) * batch]
            total += gpt(input_ids=tokens, labels=tokens).loss.item()
    gpt.train(was_training)
    return total / min(batches, whole)
