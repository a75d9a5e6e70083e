#pragma once

/// What tests of modules against formulas share.

#include "reference.h"

#include <posenc/posenc.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace {

const auto kWide = at::TensorOptions(at::kDouble);

inline posenc::nn::AttendOptions causal() { return posenc::nn::AttendOptions().is_causal(true); }

/// The module in float64, with random numbers added to its parameters, so that they differ from their initial values.
template <typename Module>
Module prepared(Module module) {
  module->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    parameter.add_(0.3 * at::randn_like(parameter));
  }
  return module;
}

inline void expect_near(const at::Tensor& actual, const at::Tensor& expected, double bound) {
  EXPECT_LT(reference::error(actual, expected), bound);
}

}  // namespace
