#!/usr/bin/env python3
"""Sample inputs of PyTorch's own operator database as one-operator .pt2 files, with PyTorch's numbers.

Walks torch.testing._internal.common_methods_invocations.op_db (functions, methods, in-place and
operator forms, aliases), then calls allowed overloads that those do not reach directly with the
samples of their family, then the samples of op_db_extra.py. A sample becomes a case when it holds
an allowed overload that fewer than N cases of other shapes hold yet. Writes into DIR:
NAME.pt2, reference.safetensors (NAME/loss, NAME/grad.<parameter>) and cases.json, which also tells
the overloads that no case holds and why, and the refused operators that op_db contains.
With --device cuda the numbers are those of PyTorch on the card, of the exported program moved there;
what PyTorch cannot run there is told in the case's `unavailable`. --shard I/N takes one of N parts of
op_db, the overloads and our own samples, for N processes at once.
Usage: op_db_export.py --out DIR [--limit-per-overload N] [--seed S] [--all] [--only TEXT]
                       [--device DEVICE] [--shard I/N]
"""
import argparse
import collections
import itertools
import json
import logging
import pathlib
import re
import time
import warnings

import torch
from safetensors.torch import save_file
from torch.testing._internal.common_methods_invocations import op_db

import op_db_case
import op_db_extra
from op_db_case import Case, Unusable

ROWS = pathlib.Path(__file__).resolve().parents[2] / "opdag" / "op_table_rows.inc"
ROW = re.compile(r'^WEFT_OP\("([^"]+)", \w+, "([VRNC]*)"')
DTYPES = [torch.float64, torch.complex128, torch.int64, torch.bool, torch.float32]
# The importer gives these zeroed memory: there is no number of PyTorch's to compare with.
UNSPECIFIED = {"empty.memory_format", "empty_like", "new_empty"}
# In-place forms that change geometry only: the importer takes the form without the underscore.
METADATA_ONLY = {"detach_", "unsqueeze_", "squeeze_", "squeeze_.dim", "squeeze_.dims", "transpose_",
                 "t_", "swapaxes_", "swapdims_"}


def allowed_rows():
    matches = (ROW.match(line) for line in ROWS.read_text().splitlines())
    return {m.group(1): m.group(2) for m in matches if m}


def is_in_place(name):
    base = name.partition(".")[0]
    return (base.endswith("_") and not base.endswith("__")) or base.startswith("__i")


def functional_name(name):
    """Of an in-place overload without a row: the one the importer turns it into."""
    base, dot, variant = name.partition(".")
    base = "__" + base[3:] if base.startswith("__i") else base[:-1]
    return base + dot + variant


class Candidate:
    def __init__(self, family, form, call, args, kwargs):
        self.family, self.form, self.call, self.args, self.kwargs = family, form, call, args, kwargs


def dtypes_of(op):
    backward = [d for d in DTYPES if d in op.backward_dtypes]
    found = backward or [d for d in DTYPES if d in op.dtypes]
    return found + [d for d in DTYPES if d in op.dtypes and d not in found]


def samples_of(op, dtype, per_structure=3, limit=60):
    """A few samples of each structure of arguments; different shapes first."""
    differentiable = dtype.is_floating_point or dtype.is_complex
    requires_grad = differentiable and op.supports_autograd
    seen, shapes = collections.Counter(), set()
    try:
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad), 4 * limit):
            args = (sample.input, *sample.args)
            structure = op_db_case.structure_of(args, sample.kwargs)
            shape = op_db_case.shapes_of(args, sample.kwargs)
            if shape in shapes or seen[structure] >= per_structure:
                continue
            shapes.add(shape)
            seen[structure] += 1
            yield args, sample.kwargs
            if len(shapes) >= limit:
                return
    except Exception as error:  # noqa: BLE001  a generator that needs a GPU, SciPy or a file
        logging.debug("%s %s: %s", op.name, dtype, error)


def forms_of(op):
    yield "function", op.op
    if op.method_variant is not None:
        yield "method", op.method_variant
    if op.operator_variant is not None:
        yield "operator", op.operator_variant
    if op.inplace_variant is not None:
        yield "inplace", op.inplace_variant
    if op.inplace_operator_variant is not None:
        yield "inplace_operator", op.inplace_operator_variant
    for alias in op.aliases:
        yield alias.name, alias.op
        if alias.inplace_variant is not None:
            yield alias.name + "_inplace", alias.inplace_variant


def candidates_of_op_db(only, main_dtype, shard):
    for op in shard.part_of(op_db):
        if only not in op.name:
            continue
        dtypes = dtypes_of(op)
        for dtype in dtypes[:1] if main_dtype else dtypes[1:]:
            samples = list(samples_of(op, dtype) if main_dtype else samples_of(op, dtype, 1, 4))
            for form, call in forms_of(op):
                for args, kwargs in samples:
                    yield Candidate(op.formatted_name, form, call, args, kwargs)


def overload(name):
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")


def family_of(name):
    """Entries of op_db whose samples may fit an overload that no function of PyTorch calls."""
    base = name.partition(".")[0].strip("_")
    base = re.sub(r"^(i|thnn_|unsafe_|fused_)", "", base) if base.startswith(
        ("thnn_", "unsafe_", "fused_")) else base
    for op in op_db:
        names = {op.name, op.aten_name, op.name.rpartition(".")[2], *(a.name for a in op.aliases)}
        if {n.strip("_") for n in names if n} & {base}:
            yield op


def as_schema_wants(schema, args, kwargs):
    """The arguments with numbers where the overload takes numbers, tensors where tensors."""
    fitted = []
    for value, argument in zip(args, schema.arguments):
        kind = str(argument.type)
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and kind in ("number", "Optional[number]"):
            value = value.detach().reshape(-1)[0].item() if value.numel() else 1
        elif kind == "Tensor" and isinstance(value, (int, float)) and not isinstance(value, bool):
            value = torch.tensor(value)
        fitted.append(value)
    names = {argument.name for argument in schema.arguments}
    return tuple(fitted), {k: v for k, v in kwargs.items() if k in names}


def direct_candidates(name):
    call = overload(name)
    for op in family_of(name):
        for dtype in dtypes_of(op):
            for args, kwargs in samples_of(op, dtype):
                args, kwargs = as_schema_wants(call._schema, args, kwargs)
                yield Candidate("aten." + name, "direct", call, args, kwargs)


class Shard:
    def __init__(self, text):
        self.index, self.count = (int(part) for part in text.split("/"))

    def part_of(self, items):
        return itertools.islice(items, self.index, None, self.count)


class Collection:
    """The cases taken so far and what they hold."""

    def __init__(self, folder, limit, seed, device):
        self.folder, self.limit, self.seed, self.device = folder, limit, seed, device
        self.rows = allowed_rows()
        self.cases, self.reference = [], {}
        self.held = collections.Counter()
        self.shapes = collections.defaultdict(set)
        self.refused = collections.defaultdict(set)
        self.failed = {}
        self.names = collections.Counter()

    def is_allowed(self, name):
        return name in self.rows or name in UNSPECIFIED | METADATA_ONLY or (
            is_in_place(name) and functional_name(name) in self.rows)

    def wanted(self, overloads, shape):
        return {o for o in overloads if self.held[o] < self.limit and shape not in self.shapes[o]}

    def consider(self, candidate):
        """Takes the candidate if it adds something."""
        try:
            overloads = op_db_case.overloads_called(
                candidate.call, candidate.args, candidate.kwargs)
        except Exception as error:  # noqa: BLE001  op_db has samples that only some forms take
            if candidate.form == "extra":
                self.failed[candidate.family.removeprefix("aten.")] = str(error)[:300]
            return
        refused = {o for o in overloads if not self.is_allowed(o)}
        for name in refused:
            self.refused[name].add(candidate.family)
        shape = op_db_case.shapes_of(candidate.args, candidate.kwargs)
        wanted = overloads if candidate.form == "extra" else self.wanted(overloads, shape)
        if refused or not wanted:
            return
        try:
            held = self.take(candidate, overloads)
        except Exception as error:  # noqa: BLE001  told in cases.json if nothing else holds it
            for name in wanted:
                self.failed[name] = f"{candidate.family}: {type(error).__name__}: {error}"[:300]
            return
        for name in held:
            self.held[name] += 1
            self.shapes[name].add(shape)

    def take(self, candidate, overloads):
        try:
            case = Case(candidate.call, candidate.args, candidate.kwargs, self.seed)
            truth = case.gradients()
        except RuntimeError:  # not differentiable here
            case = Case(candidate.call, candidate.args, candidate.kwargs, self.seed, False)
            truth = case.gradients()
        program, before, after, between = op_db_case.export(case)
        if any(not self.is_allowed(name) for name in between):
            raise Unusable("its export holds a refused operator")
        if candidate.form != "extra" and not self.wanted(between, None):
            raise Unusable("its export holds other overloads than its trace")
        self.names[candidate.family] += 1
        name = f"{candidate.family}.{self.names[candidate.family]}"
        torch.export.save(program, self.folder / f"{name}.pt2")
        drawn = any(self.draws(o) for o in between)
        unavailable = ""
        if self.device != "cpu":
            try:
                truth = op_db_case.gradients_on(program, self.device)
            except Exception as error:  # noqa: BLE001  PyTorch has no kernel, or a cut-out of one
                truth, unavailable = {}, f"{type(error).__name__}: {error}".splitlines()[0][:200]
        for key, tensor in truth.items():
            self.reference[f"{name}/{key}"] = tensor.contiguous()
        self.cases.append({"name": name, "form": candidate.form, "overloads": sorted(between),
                           "before": before, "after": after, "random": drawn,
                           "narrow": case.narrow, "unavailable": unavailable})
        return between

    def draws(self, name):
        row = name if name in self.rows else functional_name(name) if is_in_place(name) else ""
        return name in UNSPECIFIED or "R" in self.rows.get(row, "")

    def missing(self):
        return sorted(name for name in self.rows if not self.held[name])

    def write(self):
        missing = {name: op_db_extra.REASONS.get(name) or self.failed.get(name, "")
                   for name in self.missing()}
        unexplained = [name for name in missing if name not in op_db_extra.REASONS]
        summary = {"torch": torch.__version__, "cases": self.cases, "missing": missing,
                   "unexplained": unexplained,
                   "refused": {k: sorted(v) for k, v in sorted(self.refused.items())}}
        (self.folder / "cases.json").write_text(json.dumps(summary, indent=1))
        save_file(self.reference, str(self.folder / "reference.safetensors"))
        return summary


def collect(collection, only, shard):
    started = time.monotonic()

    def tell(stage):
        print(f"{time.monotonic() - started:5.0f} s {stage}: {len(collection.cases)} cases, "
              f"{len(collection.missing())} rows in none", flush=True)

    # One case an overload: what other dtypes alone hold, the direct calls find faster.
    for main_dtype in (True,) if collection.limit == 1 else (True, False):
        for candidate in candidates_of_op_db(only, main_dtype, shard):
            collection.consider(candidate)
        tell("op_db, main dtype" if main_dtype else "op_db, other dtypes")
    own_rows = set(shard.part_of(sorted(collection.rows)))
    for name in collection.missing():
        if only in name and name in own_rows:
            for candidate in direct_candidates(name):
                if collection.held[name]:
                    break
                collection.consider(candidate)
    tell("overloads called directly")
    for name, call, args, kwargs in shard.part_of(op_db_extra.samples()):
        if only in name:
            collection.consider(Candidate("aten." + name, "extra", call, args, kwargs))
    tell("samples of our own")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--limit-per-overload", type=int, default=2)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--all", action="store_true", help="every sample that differs in shape")
    parser.add_argument("--only", default="", help="entries and overloads whose name holds this")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", type=Shard, default=Shard("0/1"), help="I/N: one of N parts")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.ERROR)
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    limit = 1_000_000 if options.all else options.limit_per_overload
    collection = Collection(options.out, limit, options.seed, options.device)
    collect(collection, options.only, options.shard)
    summary = collection.write()
    print(f"{len(collection.rows)} overloads allowed, "
          f"{len(collection.rows) - len(summary['missing'])} in cases, "
          f"{len(summary['missing'])} in none, {len(summary['unexplained'])} of them unexplained")
    for name in summary["unexplained"]:
        print("  not covered:", name, summary["missing"][name])


if __name__ == "__main__":
    main()
