// The one door to libtorch: every file of executor/ that needs a tensor includes this header last,
// and only this one (it is the precompiled header). Narrow on purpose: torch/torch.h costs 30 s a
// unit.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
