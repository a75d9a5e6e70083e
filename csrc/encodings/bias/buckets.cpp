/// The slopes of ALiBi and the buckets of T5: numbers without derivatives.

#include "common/checks.h"
#include "common/plain_tensors.h"
#include "common/registration.h"
#include "encodings/bias/ops.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <bit>
#include <cmath>

namespace posenc::bias_ops {

std::vector<double> alibi_slope_list(int64_t num_heads) {
  TORCH_CHECK_VALUE(num_heads >= 1, "alibi_slopes: expected num_heads to be at least 1, but got ", num_heads);
  check_entries("alibi_slopes", "num_heads", num_heads);
  const auto lower = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  std::vector<double> slopes;
  for (int64_t h = 1; h <= lower; ++h) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(lower)));
  }
  for (int64_t h = 1; h <= num_heads - lower; ++h) {  // entries 1, 3, 5, .. of the list for 2 lower heads
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(2 * h - 1) / static_cast<double>(lower)));
  }
  return slopes;
}

void check_buckets(const char* op, int64_t num_buckets, int64_t max_distance, bool bidirectional) {
  const int64_t least = bidirectional ? 4 : 2;
  TORCH_CHECK_VALUE(num_buckets >= least && (!bidirectional || num_buckets % 2 == 0), op,
                    ": expected num_buckets to be ", bidirectional ? "even, half of it for each direction, and " : "",
                    "at least ", least, ", but got ", num_buckets);
  check_entries(op, "num_buckets", num_buckets);
  const int64_t exact = num_buckets / (bidirectional ? 4 : 2);
  TORCH_CHECK_VALUE(max_distance > exact, op, ": expected max_distance to be larger than the ", exact,
                    " distances that have a bucket each, but got ", max_distance);
}

namespace {

/// Where each bucket but the first begins, as distances n, for the `buckets` of one direction. Beyond the exact half m,
/// bucket m + k begins at the least n with ln(n/m) / ln(max_distance/m) * (buckets - m) >= k, in float64.
std::vector<int64_t> bucket_starts(int64_t buckets, int64_t max_distance) {
  const int64_t exact = buckets / 2;
  const auto m = static_cast<double>(exact), largest = static_cast<double>(max_distance);
  const auto steps = static_cast<double>(buckets - exact);
  const auto step_of = [&](int64_t n) { return std::log(static_cast<double>(n) / m) / std::log(largest / m) * steps; };
  std::vector<int64_t> starts;
  for (int64_t n = 1; n <= exact; ++n) {
    starts.push_back(n);
  }
  for (int64_t k = 1; k < buckets - exact; ++k) {
    auto n = static_cast<int64_t>(m * std::pow(largest / m, static_cast<double>(k) / steps));
    while (n > exact && step_of(n - 1) >= static_cast<double>(k)) {
      --n;
    }
    while (step_of(n) < static_cast<double>(k)) {
      ++n;
    }
    starts.push_back(n);
  }
  return starts;
}

Tensor alibi_slopes_kernel(int64_t num_heads, std::optional<at::ScalarType> given, std::optional<at::Device> device) {
  const at::ScalarType dtype = given.value_or(at::kFloat);
  TORCH_CHECK_TYPE(at::isFloatingType(dtype), "alibi_slopes: expected dtype to be a floating type, but got ", dtype);
  const auto slopes = alibi_slope_list(num_heads);
  const auto options = at::TensorOptions().dtype(dtype).device(device.value_or(at::kCPU));
  if (options.device().is_meta()) {
    return at::empty({num_heads}, options);
  }
  return plain_tensor(slopes).to(options);
}

void check_t5_bucket(const Tensor& relative_position, int64_t num_buckets, int64_t max_distance, bool bidirectional) {
  check_dense("t5_bucket", "relative_position", relative_position);
  TORCH_CHECK_TYPE(at::isIntegralType(relative_position.scalar_type(), /*includeBool=*/false),
                   "t5_bucket: expected relative_position to be an integer type, but got ",
                   relative_position.scalar_type());
  check_buckets("t5_bucket", num_buckets, max_distance, bidirectional);
}

Tensor t5_bucket_kernel(const Tensor& relative_position, int64_t num_buckets, int64_t max_distance,
                        bool bidirectional) {
  check_t5_bucket(relative_position, num_buckets, max_distance, bidirectional);
  const auto starts = bucket_starts(bidirectional ? num_buckets / 2 : num_buckets, max_distance);
  Tensor boundaries = at::empty({static_cast<int64_t>(starts.size())}, at::TensorOptions(at::kLong).device(at::kCPU));
  std::copy(starts.begin(), starts.end(), boundaries.mutable_data_ptr<int64_t>());
  // Clamped first, so that no distance overflows.
  const Tensor relative = relative_position.to(at::kLong).clamp(-max_distance, max_distance);
  const Tensor distance = bidirectional ? relative.abs() : relative.neg().clamp_min(0);
  const Tensor bucket = at::bucketize(distance, boundaries.to(relative.device()), /*out_int32=*/false, /*right=*/true);
  return bidirectional ? bucket.add(relative.gt(0), num_buckets / 2) : bucket;
}

Tensor t5_bucket_meta(const Tensor& relative_position, int64_t num_buckets, int64_t max_distance, bool bidirectional) {
  check_t5_bucket(relative_position, num_buckets, max_distance, bidirectional);
  return at::empty_like(relative_position, at::kLong);
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("alibi_slopes", &alibi_slopes_kernel);
  m.impl("t5_bucket", &t5_bucket_kernel);
}

POSENC_LIBRARY_IMPL(Meta, m) { m.impl("t5_bucket", &t5_bucket_meta); }

// Nested tensors come to these keys; check_dense() refuses them by name.
POSENC_LIBRARY_IMPL(NestedTensorCPU, m) { m.impl("t5_bucket", &t5_bucket_kernel); }
POSENC_LIBRARY_IMPL(AutogradNestedTensor, m) { m.impl("t5_bucket", &t5_bucket_kernel); }

// Integers have no derivative.
POSENC_LIBRARY_IMPL(Autograd, m) { m.impl("t5_bucket", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace posenc::bias_ops
