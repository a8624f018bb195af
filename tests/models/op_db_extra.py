"""Allowed overloads that the samples of op_db do not reach: samples of our own, and the reasons of the rest.

Most are inner or older forms that functions of PyTorch call on some devices, after decomposition or
in older exports: convolution, _softmax, upsample_nearest2d, lstm.input.
"""
import torch

# Overload: why no case can hold it.
REASONS = {
    "lift_fresh": "an export writes lift_fresh_copy where a forward makes a constant",
}


def f(*shape):
    return torch.rand(shape, dtype=torch.float64, requires_grad=True)


def signed(*shape):
    return (torch.rand(shape, dtype=torch.float64) * 2 - 1).requires_grad_()


def c(*shape):
    return torch.randn(shape, dtype=torch.complex128, requires_grad=True)


def i(high, *shape):
    return torch.randint(0, high, shape)


def gate_weights(gates, inputs, hidden):
    return [signed(gates * hidden, inputs), signed(gates * hidden, hidden),
            signed(gates * hidden), signed(gates * hidden)]


def recurrent():
    """A layer in both directions where the overload takes them; cells once."""
    for name, gates in (("rnn_tanh", 1), ("rnn_relu", 1), ("gru", 3), ("lstm", 4)):
        x, state = signed(5, 2, 3), signed(2, 2, 4)
        params = gate_weights(gates, 3, 4) + gate_weights(gates, 3, 4)
        states = [state, signed(2, 2, 4)] if name == "lstm" else state
        yield f"{name}.input", (x, states, params, True, 1, 0.0, True, True, False), {}
        state = signed(2, 4)
        states = [state, signed(2, 4)] if name == "lstm" else state
        yield f"{name}_cell", (signed(2, 3), states, *gate_weights(gates, 3, 4)), {}


def convolutions():
    for dims in (1, 2, 3):
        size, one, zero = (6,) * dims, [1] * dims, [0] * dims
        x, w, b = signed(2, 3, *size), signed(4, 3, *([3] * dims)), signed(4)
        rest = (one, one, one, False, zero, 1)
        yield "convolution", (x, w, b, *rest), {}
        yield "_convolution", (x, w, b, *rest, False, False, False, False), {}
        yield "_convolution_mode", (x, w, b, one, "same", one, 1), {}
    x, w = signed(1, 2, 5, 5, 5), signed(3, 2, 3, 3, 3)
    yield "slow_conv3d", (x, w, [3, 3, 3], None, [1, 1, 1], [1, 1, 1]), {}
    yield "slow_conv_dilated3d", (x, w, [3] * 3, None, [1] * 3, [1] * 3, [1] * 3), {}
    yield "slow_conv_transpose3d", (signed(1, 3, 3, 3, 3), w, [3, 3, 3]), {}
    x, w = signed(1, 2, 5, 5), signed(3, 2, 3, 3)
    yield "slow_conv_dilated2d", (x, w, [3, 3], None, [1, 1], [1, 1], [1, 1]), {}
    yield "slow_conv_transpose2d", (signed(1, 3, 3, 3), w, [3, 3]), {}
    yield "conv_tbc", (signed(5, 2, 3), signed(3, 3, 4), signed(4), 1), {}
    yield "col2im", (signed(1, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), {}


def resampling():
    for dims, linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
        x, size = signed(1, 2, *([3] * dims)), [5] * dims
        yield f"upsample_{linear}{dims}d", (x, size, False), {}
        yield f"upsample_nearest{dims}d", (x, size), {}
        yield f"_upsample_nearest_exact{dims}d", (x, size), {}
        yield f"reflection_pad{dims}d", (x, [1, 1] * dims), {}
        yield f"replication_pad{dims}d", (x, [1, 2] * dims), {}
    x = signed(1, 2, 4, 4)
    yield "upsample_bicubic2d", (x, [6, 5], False), {}
    yield "_upsample_bicubic2d_aa", (x, [3, 3], False), {}
    yield "_upsample_bicubic2d_aa.vec", (x, [3, 3], False, None), {}
    yield "affine_grid_generator", (signed(2, 2, 3), [2, 1, 4, 4], False), {}


def normalization():
    yield "_softmax", (signed(3, 4), 1, False), {}
    yield "_log_softmax", (signed(3, 4), 1, False), {}
    yield "native_group_norm", (signed(2, 4, 6), signed(4), signed(4), 2, 4, 6, 2, 1e-5), {}
    yield "_native_batch_norm_legit_functional", (
        signed(3, 4, 5), signed(4), signed(4), torch.zeros(4, dtype=torch.float64),
        torch.ones(4, dtype=torch.float64), True, 0.1, 1e-5), {}
    yield "_weight_norm", (signed(4, 3), f(4, 1), 0), {}
    yield "_weight_norm_interface", (signed(4, 3), f(4, 1), 0), {}
    yield "norm_except_dim", (signed(4, 3), 2, 0), {}
    yield "norm.ScalarOpt_dtype", (signed(4, 3), 2), {"dtype": torch.float64}
    yield "norm.ScalarOpt_dim_dtype", (signed(4, 3), 2, [1], False), {"dtype": torch.float64}
    yield "frobenius_norm.dim", (signed(4, 3), [0, 1], False), {}
    yield "nuclear_norm", (signed(4, 3),), {}
    yield "nuclear_norm.dim", (signed(2, 4, 3), [1, 2]), {}
    yield "linalg_cond.p_str", (signed(3, 3), "fro"), {}
    yield "linalg_matrix_rank", (signed(3, 3), 0.1), {}
    yield "linalg_matrix_rank.tol_tensor", (signed(3, 3), torch.tensor(0.1, dtype=torch.float64)), {}
    yield "linalg_pinv", (signed(3, 2), 1e-9), {}


def losses():
    x, target = signed(4, 5), i(5, 4)
    yield "nll_loss_forward", (x, target, None, 1, -100), {}
    yield "nll_loss2d", (signed(2, 5, 3, 3), i(5, 2, 3, 3)), {}
    yield "nll_loss2d_forward", (signed(2, 5, 3, 3), i(5, 2, 3, 3), None, 1, -100), {}
    yield "log_sigmoid_forward", (signed(4),), {}
    yield "multilabel_margin_loss_forward", (x, i(5, 4, 5), 1), {}
    yield "_pdist_forward", (signed(4, 3),), {}
    yield "_cdist_forward", (signed(4, 3), signed(2, 3), 2.0, None), {}
    yield "_euclidean_dist", (signed(4, 3), signed(2, 3)), {}
    yield "embedding_bag", (signed(6, 3), i(6, 5), torch.tensor([0, 2])), {"mode": 1}


def random_draws():
    yield "bernoulli.Tensor", (signed(8), f(8)), {}
    yield "bernoulli.p", (signed(8), 0.5), {}
    yield "binomial", (torch.full((8,), 10.0, dtype=torch.float64), f(8).detach()), {}
    yield "poisson", (f(8),), {}
    yield "_standard_gamma", (f(8),), {}
    yield "_sample_dirichlet", (f(2, 4),), {}
    yield "native_dropout", (signed(20), 0.5, True), {}
    yield "normal_functional", (signed(8), 1.0, 2.0), {}
    yield "randperm", (7,), {}
    yield "random", (signed(8),), {}
    yield "random.to", (signed(8), 9), {}
    yield "rrelu_with_noise_functional", (signed(8), torch.zeros(8, dtype=torch.float64), 0.1, 0.3,
                                          True), {}


def created():
    double = {"dtype": torch.float64}
    for name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
        yield f"{name}_window", (6,), double
        yield f"{name}_window.periodic", (6, False), double
    yield "hamming_window.periodic_alpha", (6, True, 0.6), double
    yield "hamming_window.periodic_alpha_beta", (6, True, 0.6, 0.4), double
    yield "kaiser_window.beta", (6, True, 10.0), double
    yield "fft_fftfreq", (6, 0.5), double
    yield "fft_rfftfreq", (6, 0.5), double
    yield "range.step", (1, 7, 2), double


def copies_and_views():
    x = signed(3, 4)
    for name in ("alias", "detach", "detach_copy", "_neg_view", "_neg_view_copy"):
        yield name, (x,), {}
    yield "_reshape_alias", (x, [4, 3], [3, 1]), {}
    yield "_reshape_alias_copy", (x, [4, 3], [3, 1]), {}
    yield "copy", (x, signed(4)), {}
    yield "copy_", (x, signed(4)), {}
    yield "fill.Tensor", (x, f()), {}
    yield "fill_.Tensor", (x, f()), {}
    yield "moveaxis.int", (x, 0, 1), {}
    yield "movedim.int", (x, 0, 1), {}
    yield "_to_copy", (x,), {"dtype": torch.float32}
    yield "to.dtype_layout", (x,), {"dtype": torch.float32}
    yield "type_as", (x, torch.zeros(1)), {}
    yield "view.dtype", (i(9, 4), torch.int32), {}
    yield "view_copy.dtype", (i(9, 4), torch.int32), {}
    yield "view_as_real_copy", (c(3),), {}
    yield "view_as_complex_copy", (signed(3, 2),), {}
    yield "_conj_copy", (c(3),), {}
    yield "select_copy.int", (x, 1, 2), {}
    yield "slice_copy.Tensor", (x, 1, 0, 4, 2), {}
    yield "split_copy.Tensor", (x, 2, 1), {}
    yield "squeeze_copy.dims", (signed(1, 3, 1), [0, 2]), {}
    yield "native_channel_shuffle", (signed(1, 4, 2, 2), 2), {}
    yield "pad_sequence", ([signed(2, 3), signed(4, 3)], True, 0.5), {}
    yield "flatten_dense_tensors", ([signed(2), signed(3, 2)],), {}
    yield "_unsafe_index.Tensor", (x, [None, i(4, 5)]), {}


def arithmetic():
    ints = i(7, 5)
    for name in ("and", "or", "xor", "lshift", "rshift"):
        yield f"__{name}__.Scalar", (ints, 2), {}
    yield "_is_all_true", (i(2, 4).bool(),), {}
    yield "_is_any_true", (i(2, 4).bool(),), {}
    yield "_prelu_kernel", (signed(3, 4), f(1, 4)), {}
    yield "_trilinear", (signed(2, 3), signed(5, 3, 4), signed(2, 4), [1, 3], [0], [1, 2], [2, 3]), {}
    yield "chain_matmul", ([signed(2, 3), signed(3, 4), signed(4, 2)],), {}
    yield "_fft_c2c", (c(6), [0], 0, True), {}
    yield "_fft_c2r", (c(4), [0], 0, 6), {}
    yield "_fft_r2c", (signed(6), [0], 0, True), {}
    yield "gradient.scalararray", (signed(4, 4),), {"spacing": 0.5, "dim": [0, 1]}
    yield "gradient.tensorarrayint", (signed(4),), {"spacing": [torch.arange(4.0).double()]}
    yield "one_hot", (i(4, 5), 4), {}
    positive = f(4).detach() + 0.5
    for name in ("igamma", "igammac", "special_gammainc", "special_gammaincc"):
        yield name, (positive, f(4).detach()), {}
    yield "special_zeta", (positive + 1, positive), {}
    yield "special_zeta.other_scalar", (positive + 1, 2), {}
    yield "special_zeta.self_scalar", (3, positive), {}
    yield "special_xlogy.other_scalar", (f(4), 2), {}
    yield "special_xlogy.self_scalar", (3, f(4) + 0.5), {}


def last_states(x, state, cell, head, *params):
    """A classifier on an LSTM's last states, whose shapes exports write wrong (opdag/lstm_shapes.h)."""
    _, last, memory = torch.lstm(x, (state, cell), params, True, 2, 0.0, True, True, True)
    both = torch.cat([last[-2], last[-1]], dim=1)
    flat = memory.transpose(0, 1).reshape(x.shape[0], -1)
    return torch.tanh(torch.nn.functional.linear(both, head)) * 2.0, flat[:, 1:].unsqueeze(1)


def models():
    first, second = (gate_weights(4, width, 4) for width in (3, 8))
    first, second = first + gate_weights(4, 3, 4), second + gate_weights(4, 8, 4)
    yield "lstm.input", last_states, (
        signed(2, 5, 3), signed(4, 2, 4), signed(4, 2, 4), signed(6, 8), *first, *second), {}


def samples():
    """(overload it is meant for, call, args, kwargs)"""
    for group in (arithmetic, recurrent, convolutions, resampling, normalization, losses,
                  random_draws, created, copies_and_views):
        for name, args, kwargs in group():
            base, _, variant = name.partition(".")
            call = getattr(getattr(torch.ops.aten, base), variant or "default")
            yield name, call, args, kwargs
    yield from models()
