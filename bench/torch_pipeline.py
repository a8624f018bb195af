#!/usr/bin/env python3
"""The baseline of bench/netlab: torch.distributed.pipelining over gloo, a rank for each stage, each rank in its
network namespace, training the graph that weft trains, cut where weft cuts it, on the same samples.

Started by bench/netlab. Reads its setting as a line of JSON, then one run a line ({"schedule", "steps"}); answers
each with {"seconds", "losses"} or {"error"}. Ranks are forked for each run: weights are the exported ones again.

What torch.distributed.pipelining leaves to its user is done here in its favour: a weight that two stages share is
summed by an all-reduce of its two owners; values that need no gradient (masks) are made again in each stage instead
of being sent; shapes are given, so that no step infers them; AdamW is the fused one.
"""
import ctypes
import json
import multiprocessing
import os
import re
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
import transformers  # noqa: F401  the exported graph returns one of its classes
from transformers import GPT2LMHeadModel  # noqa: F401

SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B,
             "interleaved": pipelining.ScheduleInterleaved1F1B,
             "interleaved-zb": pipelining.ScheduleInterleavedZeroBubble,
             "zb-v": pipelining.ScheduleZBVZeroBubble}
SINGLE = ("gpipe", "1f1b")
SPLIT_BACKWARD = ("interleaved-zb", "zb-v")
RUN_TIMEOUT_S = 180
WARM_UP = 2  # steps that pay for connections and memory


# ---- the samples of a step, as job/sample_order.h has them

MASK = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def sample_order(samples, seed):
    """The first epoch's."""
    state = 0
    for part in (seed, 0):
        state = mix64(state ^ mix64(part))
    order = list(range(samples))
    for i in range(samples, 1, -1):
        state = (state + 0x9e3779b97f4a7c15) & MASK
        j = (mix64(state) * i) >> 64
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


# ---- stages

class Cut:
    """The exported graph as `stages` modules, each node in the stage that `stage_of` (by name) says."""

    def __init__(self, program, stage_of, stages):
        self.graph = program.graph
        self.stages = stages
        names = program.graph_signature.inputs_to_parameters
        by_place, self.parameters = {}, {}
        for node, name in names.items():
            value = program.state_dict[name]
            self.parameters[node] = by_place.setdefault(value.data_ptr(), torch.nn.Parameter(value.detach().clone()))
        self.nodes = [node for node in self.graph.nodes if node.op == "call_function"]
        self.trained = set()  # values that depend on a weight
        for node in self.graph.nodes:
            if node.name in names or any(one in self.trained for one in node.all_input_nodes):
                self.trained.add(node)
        self.stage = self.place(stage_of)
        self.loss = next(iter(self.graph.output_node().args[0]))
        self.crossing = [self.values_over(k) for k in range(1, stages)]

    def place(self, stage_of):
        """Nodes weft has dropped stand where those are that use them."""
        found = {}
        for node in reversed(self.nodes):
            stage = stage_of.get(node.name)
            users = [found[user] for user in node.users if user in found]
            found[node] = stage if stage is not None else min(users, default=0)
        return found

    def values_over(self, k):
        """Values made before stage k and used in it or after, of those that need a gradient."""
        return [node for node in self.nodes if node in self.trained and self.stage[node] < k and
                isinstance(node.meta.get("val"), torch.Tensor) and
                any(self.stage.get(user, 0) >= k for user in node.users)]

    def module(self, index):
        root, graph = torch.nn.Module(), torch.fx.Graph()
        known = {}
        if index > 0:
            for node in self.crossing[index - 1]:
                known[node] = graph.call_function(gradient_in_one_piece, (graph.placeholder(node.name),))
        # Every stage of a rank is given the same inputs by name.
        for name in ("input_ids", "labels"):
            source = next(node for node in self.graph.nodes if node.name == name)
            known[source] = graph.placeholder(name, default_value=None)

        def value(node):
            if node in known:
                return known[node]
            if node.op == "placeholder":
                setattr(root, node.name, self.parameters[node.name])
                known[node] = graph.get_attr(node.name)
                return known[node]
            assert node not in self.trained or self.stage[node] == index, (node, index)
            for one in node.all_input_nodes:
                value(one)
            known[node] = graph.node_copy(node, lambda one: known[one])
            return known[node]

        for node in self.nodes:
            if self.stage[node] == index and node in self.trained and node.users:
                value(node)
        if index + 1 < self.stages:
            # gloo sends what lies in one piece, and the schedules of zero bubbles refuse views.
            graph.output(tuple(
                graph.call_method("clone", (value(node),), {"memory_format": torch.contiguous_format})
                for node in self.crossing[index]))
        else:
            graph.output(graph.call_method("reshape", (value(self.loss), (1,))))
        graph.eliminate_dead_code()
        return torch.fx.GraphModule(root, graph)

    def shapes(self, k):
        """Of what goes into stage k."""
        return tuple(torch.empty(node.meta["val"].shape, device="meta") for node in self.crossing[k - 1])


class GradientInOnePiece(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return gradient.contiguous()


def gradient_in_one_piece(value):
    """gloo refuses to send any other, and the schedules of zero bubbles send what autograd gives them."""
    return GradientInOnePiece.apply(value)


class WaitForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, seconds, shapes, *inputs):
        ctx.seconds, ctx.like = seconds, [one.shape for one in inputs]
        time.sleep(seconds["forward"])
        return tuple(torch.zeros(shape) for shape in shapes)

    @staticmethod
    def backward(ctx, *_):
        time.sleep(ctx.seconds["first"])
        return None, None, *(torch.zeros(shape) for shape in ctx.like)


class WaitWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx, seconds, zeros, *_):
        ctx.seconds, ctx.zeros = seconds, zeros
        return torch.zeros(())

    @staticmethod
    def backward(ctx, _):
        time.sleep(ctx.seconds["rest"])
        return None, None, *ctx.zeros


class WaitingStage(torch.nn.Module):
    """Waits as long as weft's stage does instead of computing; gives zeros of the right shapes."""

    def __init__(self, module, seconds, shapes):
        super().__init__()
        self.held, self.seconds, self.shapes = module, seconds, shapes
        self.zeros = [torch.zeros_like(one) for one in module.parameters()]

    def forward(self, *inputs, input_ids=None, labels=None):  # noqa: ARG002
        made = WaitForward.apply(self.seconds, self.shapes, *(inputs or (torch.zeros((), requires_grad=True),)))
        weights = WaitWeights.apply(self.seconds, self.zeros, *self.held.parameters())
        made = tuple(one + weights for one in made)
        return made if len(made) > 1 else made[0]


# ---- a rank

def enter_namespace(name):
    with open(f"/run/netns/{name}", encoding="utf-8") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"entering the namespace {name}")


class Rank:
    def __init__(self, setting, program, tokens, rank, run):
        self.setting, self.rank, self.run = setting, rank, run
        self.world = len(setting["ends"])
        torch.set_num_threads(setting["threads"])
        ends = setting["ends"]
        os.setsid()  # the scheduler then shares the cores as between daemons of weft
        enter_namespace(ends[rank]["namespace"])
        os.environ.update(MASTER_ADDR=ends[0]["address"], MASTER_PORT=str(run["port"]),
                          GLOO_SOCKET_IFNAME=ends[rank]["device"])
        dist.init_process_group("gloo", rank=rank, world_size=self.world)
        self.single = run["schedule"] in SINGLE
        self.stages = self.world * (1 if self.single else 2)
        self.cut = Cut(program, setting["cuts"][str(self.stages)], self.stages)
        self.mine = self.my_stages()
        self.tokens = tokens
        self.schedule = self.make_schedule()
        weights = {id(one): one for stage in self.built for one in stage.submod.parameters()}
        # A rank may hold no weights: a stage of activations only.
        self.optimizers = [torch.optim.AdamW(list(weights.values()), lr=setting["lr"], weight_decay=0.0,
                                             fused=True)] if weights else []
        self.tied, self.tied_group = self.shared_weights(weights)

    def my_stages(self):
        if self.single:
            return [self.rank]
        second = self.stages - 1 - self.rank if self.run["schedule"] == "zb-v" else self.rank + self.world
        return [self.rank, second]

    def module(self, stage):
        module = self.cut.module(stage)
        if not self.setting.get("waits"):
            return module
        split = self.run["schedule"] in SPLIT_BACKWARD
        whole = self.setting["waits"][stage * self.world // self.stages]
        part = self.world / self.stages
        seconds = {"forward": whole["forward"] * part,
                   "first": (whole["first"] if split else whole["backward"]) * part,
                   "rest": whole["rest"] * part if split else 0.0}
        last = stage + 1 == self.stages
        return WaitingStage(module, seconds, [(1,)] if last else [one.shape for one in self.cut.shapes(stage + 1)])

    def make_schedule(self):
        self.built = []
        for stage in self.mine:
            last = stage + 1 == self.stages
            output = (torch.empty(1, device="meta"),) if last else self.cut.shapes(stage + 1)
            self.built.append(pipelining.PipelineStage(
                self.module(stage), stage, self.stages, torch.device("cpu"),
                input_args=self.cut.shapes(stage) if stage else (), output_args=output))
        if self.run["schedule"] == "zb-v":
            for stage in self.built:  # it would greet itself, which gloo cannot; gloo needs no greeting
                stage._get_init_p2p_neighbors_ops = list
        count = self.setting["micro_batches"]
        return SCHEDULES[self.run["schedule"]](
            self.built[0] if self.single else self.built, count,
            loss_fn=lambda output, _: output.sum() / count, scale_grads=False)

    def shared_weights(self, weights):
        """Weights of the first and of the last stage, where those are different ranks'."""
        last_rank = 0 if self.run["schedule"] == "zb-v" else self.world - 1
        group = dist.new_group([0, last_rank]) if last_rank else None
        of = [{id(one): one for one in self.cut.module(stage).parameters()} for stage in (0, self.stages - 1)]
        shared = [weights[key] for key in of[0] if key in of[1] and key in weights]
        return (shared, group) if last_rank and self.rank in (0, last_rank) else ([], None)

    def step(self, rows):
        batch = self.tokens[rows]
        last = self.stages - 1 in self.mine
        losses = []
        target = {"target": torch.zeros(self.setting["micro_batches"]), "losses": losses} if last else {}
        self.schedule.step(input_ids=batch, labels=batch, **target)
        for weight in self.tied:
            dist.all_reduce(weight.grad, group=self.tied_group)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return sum(loss.item() for loss in losses)

    def train(self):
        order = sample_order(len(self.tokens), self.setting["seed"])
        batch = self.setting["batch"]
        ends, losses = [time.monotonic()], []
        for i in range(self.run["steps"] + WARM_UP):
            losses.append(self.step(order[i * batch:(i + 1) * batch]))
            ends.append(time.monotonic())
        dist.barrier()
        return {"last": self.stages - 1 in self.mine, "losses": losses,
                "seconds": [b - a for a, b in zip(ends[WARM_UP:], ends[WARM_UP + 1:])]}


def rank_main(setting, program, tokens, rank, run, pipe):
    try:
        pipe.send(Rank(setting, program, tokens, rank, run).train())
    except Exception as error:
        while error.__cause__ is not None and error.__cause__.__traceback__ is not None:
            error = error.__cause__  # pipelining says of each only that a stage failed
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = (str(error).strip().splitlines() or [last.line])[0]
        pipe.send({"error": f"rank {rank}: {type(error).__name__}: {text[:300]} "
                            f"({os.path.basename(last.filename)}:{last.lineno})"})
    os._exit(0)  # gloo's threads are not waited for


def run_ranks(setting, program, tokens, run):
    context = multiprocessing.get_context("fork")
    ranks, pipes = [], []
    for rank in range(len(setting["ends"])):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=rank_main, args=(setting, program, tokens, rank, run, theirs))
        process.start()
        theirs.close()
        ranks.append(process)
        pipes.append(ours)
    try:
        answers, waiting, deadline = [], list(pipes), time.monotonic() + RUN_TIMEOUT_S
        while waiting:
            ready = multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                waiting.remove(pipe)
                try:
                    answer = pipe.recv()
                except EOFError:
                    answer = {"error": "a rank ended without a word"}
                answers.append(answer)
                if "error" in answer:  # others tell within a second that they lost a neighbour
                    deadline = min(deadline, time.monotonic() + 1)
        if waiting and not any("error" in answer for answer in answers):
            answers.append({"error": f"no end after {RUN_TIMEOUT_S} s"})
        errors = [answer for answer in answers if "error" in answer]
        if errors:  # the cause, rather than what came of it
            return min(errors, key=lambda answer: "gloo" in answer["error"])
        return next(answer for answer in answers if answer["last"])
    finally:
        for process in ranks:
            process.join(2)
            process.kill()


def stage_of_names(text, stage_of):
    """Of the values in weft's text of the graph: the stage of the node that makes them."""
    found, nodes = {}, [line for line in text.splitlines() if line.startswith("node ")]
    for line, stage in zip(nodes, stage_of, strict=True):
        for name in re.findall(r'"([^"]+)"', line.split("  # ", 1)[1]):
            found[name] = stage
    return found


def main():
    setting = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    program = torch.export.load(setting["model"])
    with open(setting["graph"], encoding="utf-8") as file:
        text = file.read()
    setting["cuts"] = {count: stage_of_names(text, stage_of) for count, stage_of in setting["cuts"].items()}
    raw = torch.frombuffer(bytearray(open(setting["tokens"], "rb").read()), dtype=torch.uint16).to(torch.int64)
    samples = (len(raw) - 1) // setting["sequence"]
    tokens = raw[:samples * setting["sequence"]].view(samples, setting["sequence"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run_ranks(setting, program, tokens, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
