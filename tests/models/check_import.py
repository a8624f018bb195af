#!/usr/bin/env python3
"""Runs an imported graph (weft's text form) and compares it with the module it came from.

Usage: check_import.py MODEL ARCHIVE.pt2 GRAPH.txt [train|eval|f64]
MODEL is a name of export_models.py. Compares every output, and in train mode every gradient and
buffer after one step. Exit status 0: equal.
"""
import re
import sys
import zipfile

import torch

import export_models

TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|%\d+|dtype:\w+|(?:device|layout|format):"[^"]*"|(?:tensors|floats|bools)\['
    r'|-?inf|nan|-?\d[\w.+-]*|[\w.:]+|[][(),=#]|\S')


def unquote(token):
    return re.sub(r"\\(x..|.)", lambda m: chr(int(m[1][1:], 16)) if m[1][0] == "x" else m[1],
                  token[1:-1])


class Graph:
    def __init__(self, path):
        self.values, self.leaves, self.nodes = {}, [], []
        self.outputs, self.updates, self.loss = [], [], None
        for line in open(path):
            kind, _, rest = line.strip().partition(" ")
            tokens = TOKEN.findall(rest)
            if kind == "value":
                elements = re.search(r" elements=\[(.*)\]", rest)
                self.values[int(tokens[0][1:])] = (
                    [int(e[1:]) for e in elements[1].split(", ")] if elements else None)
            elif kind == "leaf":
                self.leaves.append((tokens[0], int(tokens[1][1:]), unquote(tokens[2]), rest))
            elif kind == "node":
                self.nodes.append(self.node(tokens))
            elif kind == "output":
                self.outputs.append((unquote(tokens[0]), int(tokens[1][1:])))
            elif kind == "update":
                self.updates.append((unquote(tokens[0]), int(tokens[1][1:])))
            elif kind == "loss":
                self.loss = int(tokens[0])

    @staticmethod
    def node(tokens):
        at = tokens.index("=", 4 if tokens[1] == "group" else 0)
        start = 4 if tokens[1] == "group" else 1
        outputs = [None if t == "_" else int(t[1:])
                   for t in tokens[start:at] if t not in ("(", ")", ",")]
        op, position, arguments = tokens[at + 1], at + 3, {}

        def value():
            nonlocal position
            token = tokens[position]
            position += 1
            if token.endswith("["):
                items = []
                while tokens[position] != "]":
                    items.append(value())
                    if tokens[position] == ",":
                        position += 1
                position += 1
                return items
            if token.startswith("%"):
                return ("value", int(token[1:]))
            if token.startswith('"'):
                return unquote(token)
            if token.startswith("dtype:"):
                return getattr(torch, token[6:])
            if token.startswith("device:"):
                return torch.device("cpu")
            if token.startswith(("layout:", "format:")):
                return getattr(torch, token[8:-1])
            named = {"none": None, "_": None, "true": True, "false": False,
                     "inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
            if token in named:
                return named[token]
            return float(token) if re.search(r"[.e]", token) else int(token)

        while tokens[position] != ")":
            name = tokens[position]
            position += 2
            arguments[name] = value()
            if tokens[position] == ",":
                position += 1
        return op, arguments, outputs

    def run(self, leaves):
        environment = dict(leaves)

        def resolve(argument):
            if isinstance(argument, tuple):
                return environment[argument[1]]
            return [resolve(a) for a in argument] if isinstance(argument, list) else argument

        for op, arguments, outputs in self.nodes:
            name, _, overload = op.removeprefix("aten::").partition(".")
            function = getattr(getattr(torch.ops.aten, name), overload or "default")
            results = function(**{k: resolve(v) for k, v in arguments.items()})
            if self.values.get(outputs[0] if outputs else None):
                results = (results,)
            elif not isinstance(results, (tuple, list)):
                results = (results,)
            for id_, result in zip(outputs, results):
                if id_ is None:
                    continue
                environment[id_] = result
                if self.values[id_]:
                    environment.update(zip(self.values[id_], result))
        return environment


def load_leaf(archive, top, rest):
    match = re.search(r'file="([^"]*)" bytes=\d+ (\w+) (\[.*?\]) strides=(\[.*?\]) offset=(\d+)', rest)
    dtype, sizes, strides = getattr(torch, match[2]), eval(match[3]), eval(match[4])
    data = bytearray(archive.read(f"{top}/{match[1]}"))
    return torch.frombuffer(data, dtype=dtype).as_strided(sizes, strides, int(match[5])).clone()


def same(name, got, want, tolerance, worst):
    if got is None or want is None:
        if (got is None or not got.any()) and (want is None or not want.any()):
            return
        sys.exit(f"{name}: one of the two is absent")
    scale = max(want.abs().max().item(), 1e-30) if want.numel() else 1.0
    error = ((got.to(want.dtype) - want).abs().max().item() / scale) if want.numel() else 0.0
    worst[0] = max(worst[0], error)
    if got.shape != want.shape or not error <= tolerance:
        sys.exit(f"{name}: relative difference {error} > {tolerance}")


def main():
    name, archive_path, text = sys.argv[1:4]
    mode = sys.argv[4] if len(sys.argv) > 4 else "train"
    torch.manual_seed(7)
    model, inputs = export_models.MODELS[name]()
    model.train(mode != "eval" and not name.endswith("_eval"))
    graph = Graph(text)
    archive = zipfile.ZipFile(archive_path)
    top = archive.namelist()[0].split("/")[0]
    leaves, by_name = {}, {}
    for kind, id_, target, rest in graph.leaves:
        tensor = inputs[target] if kind == "input" else load_leaf(archive, top, rest)
        if mode == "f64" and tensor.dtype == torch.float32:
            tensor = tensor.double()
        if "trainable=true" in rest:
            tensor.requires_grad_(True)
        leaves[id_] = tensor
        by_name[target] = tensor
    environment = graph.run(leaves)
    expected = model(**inputs)
    tolerance, worst = {"train": 1e-5, "eval": 0.0, "f64": 1e-3}[mode], [0.0]
    for output, id_ in graph.outputs:
        same(output, environment[id_], expected[output], tolerance, worst)
    if mode != "eval":
        expected["loss"].backward()
        environment[graph.outputs[graph.loss][1]].backward()
        for target, parameter in model.named_parameters():
            same("grad " + target, sum_tied(model, target, by_name), parameter.grad, tolerance, worst)
        updated = {target: environment[id_] for target, id_ in graph.updates}
        for target, buffer in model.named_buffers():
            if target in by_name:
                same("buffer " + target, updated.get(target, by_name[target]), buffer, tolerance,
                     worst)
    print(f"{name} {mode}: equal, largest relative difference {worst[0]:.3g}")


def sum_tied(model, target, by_name):
    """Python gives a tied parameter one gradient: the sum over its names."""
    parameter = dict(model.named_parameters())[target]
    names = [n for n, p in model.named_parameters(remove_duplicate=False) if p is parameter]
    gradients = [by_name[n].grad for n in names if n in by_name and by_name[n].grad is not None]
    return sum(gradients) if gradients else None


if __name__ == "__main__":
    main()
