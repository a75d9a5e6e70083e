#include "rotary.h"

#include "shapes.h"

#include <posenc/ops.h>
#include <posenc/scaling.h>

#include <c10/core/GradMode.h>

#include <benchmark/benchmark.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

namespace posenc::benchmarks {
namespace {

constexpr int64_t kDecodePosition = 1000;

/// Inputs of one case, shared by its contenders.
struct Inputs {
  at::Tensor q, k, inv_freq, cos, sin;
};

Inputs make_inputs(const Shape& s, at::ScalarType dtype, Layout layout, int64_t offset) {
  at::manual_seed(0);
  const auto [q, k] = queries_and_keys(s, dtype, layout);
  const at::Tensor inv_freq = scaling::frequencies(s.rotary_dim, s.base).inv_freq;
  const auto [cos, sin] =
      rotary_tables(std::nullopt, inv_freq, RotaryTablesFuncOptions().length(s.tokens).offset(offset));
  return {q, k, inv_freq, cos, sin};
}

/// Rotates x in float32 by angles formed in float64.
at::Tensor reference(const at::Tensor& x, const Shape& s, int64_t offset) {
  const auto exact = at::TensorOptions(at::kDouble);
  const at::Tensor positions = at::arange(offset, offset + s.tokens, exact);
  const at::Tensor inv_freq = at::pow(s.base, at::arange(0, s.rotary_dim, 2, exact) / -s.rotary_dim);
  const at::Tensor angles = at::outer(positions, inv_freq);
  const at::Tensor cos = angles.cos().to(at::kFloat), sin = angles.sin().to(at::kFloat);
  const int64_t half = s.rotary_dim / 2;
  const at::Tensor a = x.to(at::kFloat).narrow(-1, 0, half), b = x.to(at::kFloat).narrow(-1, half, half);
  const at::Tensor tail = x.to(at::kFloat).narrow(-1, s.rotary_dim, s.head_dim - s.rotary_dim);
  return at::cat({a * cos - b * sin, b * cos + a * sin, tail}, -1);
}

void check(const std::string& name, const at::Tensor& actual, const at::Tensor& expected) {
  const double tolerance = actual.scalar_type() == at::kFloat ? 1e-5 : 2e-2;
  const double error = (actual.to(at::kFloat) - expected).abs().max().item<double>();
  // Written so that NaN fails too.
  if (!(error <= tolerance)) {
    throw std::runtime_error(name + ": wrong by " + std::to_string(error));
  }
}

using Result = std::tuple<at::Tensor, at::Tensor>;
using Call = std::function<Result(const Inputs&)>;

void add(const std::string& name, const Inputs& inputs, const Call& call) {
  const auto loop = [inputs, call](benchmark::State& state) {
    const c10::NoGradGuard no_grad;
    for (auto _ : state) {
      benchmark::DoNotOptimize(call(inputs));
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), loop)->Unit(benchmark::kMicrosecond);
}

void add_case(const Shape& s, at::ScalarType dtype, Layout layout, int64_t offset) {
  const std::string name = std::string(s.name) + " forward " + (dtype == at::kFloat ? "float32" : "bfloat16") +
                           (layout == Layout::kBHTD ? " BHTD" : " BTHD");
  const Inputs inputs = make_inputs(s, dtype, layout, offset);
  const Call op = [offset](const Inputs& in) {
    return rotary_qk(in.q, in.k, std::nullopt, in.inv_freq, RotaryFuncOptions().offset(offset));
  };
  const Call tables = [](const Inputs& in) { return apply_rotary_qk(in.q, in.k, in.cos, in.sin); };

  const at::Tensor q = reference(inputs.q, s, offset), k = reference(inputs.k, s, offset);
  for (const Call& call : {op, tables}) {
    const auto [actual_q, actual_k] = call(inputs);
    check(name, actual_q, q);
    check(name, actual_k, k);
  }

  add(name + ": rotary_qk", inputs, op);
  add(name + ": apply_rotary_qk", inputs, tables);
  add(name + ": clone", inputs, [](const Inputs& in) { return Result(in.q.clone(), in.k.clone()); });
  if (s.tokens == 1) {
    add(name + ": two empty_like", inputs,
        [](const Inputs& in) { return Result(at::empty_like(in.q), at::empty_like(in.k)); });
  }
}

}  // namespace

void register_rotary() {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Layout layout : {Layout::kBHTD, Layout::kBTHD}) {
      add_case(shape("llama3-8b"), dtype, layout, 0);
    }
    add_case(shape("qwen2.5-0.5b"), dtype, Layout::kBHTD, 0);
    add_case(shape("llama3-8b-decode"), dtype, Layout::kBHTD, kDecodePosition);
  }
}

}  // namespace posenc::benchmarks
