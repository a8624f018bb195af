"""Checks opdag/op_table_rows.inc against the installed torch: run by hand or by the tests.

Every row must name an operator torch has; in-place rows must point at a listed operator with the
same arguments that writes nothing; views and random draws must carry their flags; rows are sorted.
"""
import pathlib
import re
import sys

import torch

ROWS = pathlib.Path(__file__).resolve().parents[2] / "opdag" / "op_table_rows.inc"
ROW = re.compile(r'^WEFT_OP\("([^"]+)", (\w+), "([VRNC]*)", "([^"]*)", (\w+), "([^"]*)", "([^"]*)"\)$')

# Allowed without a torch operator of their own, or whose flag is true for a reason the schema does
# not show: they return their input, or a view of it, in some cases.
HIDDEN_VIEWS = {
    "dropout", "feature_dropout", "alpha_dropout", "rrelu", "type_as", "sum_to_size", "meshgrid",
    "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "einsum", "unsafe_chunk", "unsafe_split",
    "unsafe_split_with_sizes", "_unsafe_view", "movedim", "_conj", "to",
}
# Composite operators that call a random one: torch tags only the inner one.
HIDDEN_RANDOM = {"rnn_tanh", "rnn_relu", "lstm", "gru", "scaled_dot_product_attention"}


def overload(name):
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")


def written(schema):
    return [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]


def check_row(row, names):
    name, _, flags, functional, writes, train_flag, dropout_p = row
    try:
        op = overload(name)
    except AttributeError:
        return [f"{name}: torch {torch.__version__} has no such operator"]
    schema, base, faults = op._schema, name.partition(".")[0], []
    arguments = [a.name for a in schema.arguments]
    in_place = written(schema)
    views = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
    if views and "V" not in flags:
        faults.append("returns a view, flag V is missing")
    if "V" in flags and not views and base not in HIDDEN_VIEWS:
        faults.append("flag V, but the schema shows no alias")
    random = torch.Tag.nondeterministic_seeded in op.tags or base in HIDDEN_RANDOM
    if random != ("R" in flags):
        faults.append(f"draws at random: {random}, flags {flags!r}")
    if bool(in_place) != bool(functional):
        faults.append(f"writes {in_place}, functional form {functional!r}")
    if in_place and in_place != [arguments[0]]:
        faults.append(f"writes {in_place}: only the first argument may be written")
    if functional:
        if functional not in names:
            return faults + [f"functional form {functional} is not listed"]
        pure = overload(functional)._schema
        if written(pure):
            faults.append(f"functional form {functional} writes its arguments")
        # The first one may be called differently ("self", "input").
        if [a.name for a in pure.arguments][1:] != arguments[1:]:
            faults.append(f"functional form {functional} takes other arguments")
        if [str(a.type) for a in pure.arguments] != [str(a.type) for a in schema.arguments]:
            faults.append(f"functional form {functional} takes other types")
    for argument in (train_flag, dropout_p):
        if argument and argument not in arguments:
            faults.append(f"has no argument {argument!r}")
    if "R" in flags and any(a in arguments for a in ("train", "training")) and not train_flag:
        faults.append("the train flag is not named")
    if "running_mean" in arguments and "running_var" in arguments and not functional:
        pure = len(schema.returns) > 3  # the functional variant returns the new statistics
        if (writes == "kRunningStats") == pure:
            faults.append(f"running statistics: {writes}")
    return [f"{name}: {fault}" for fault in faults]


def main():
    rows = []
    faults = []
    for number, line in enumerate(ROWS.read_text().splitlines(), 1):
        if line.startswith("//") or not line:
            continue
        match = ROW.match(line)
        if match:
            rows.append(match.groups())
        else:
            faults.append(f"line {number} is not a row: {line[:80]}")
    names = [row[0] for row in rows]
    if names != sorted(set(names), key=lambda n: n.encode()):
        faults.append("rows are not sorted or not unique")
    for row in rows:
        faults += check_row(row, set(names))
    for fault in faults:
        print(fault)
    print(f"{len(rows)} operators, {len(faults)} faults, torch {torch.__version__}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
