#include "attention/decay.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace posenc::attention_ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The way from the order of tokens to one in which those of a segment are neighbours, and back.
class SegmentOrder {
 public:
  explicit SegmentOrder(const Call& c) {
    if (c.segment_ids) {
      sorted_ = c.segment_ids->argsort(/*stable=*/true, /*dim=*/1);
      back_ = sorted_->argsort(/*dim=*/int64_t{1});
    }
  }

  /// x (1 or B, H, Tk).
  Tensor enter(const Tensor& x) const { return rearranged(x, sorted_); }
  Tensor leave(const Tensor& x) const { return rearranged(x, back_); }

 private:
  static Tensor rearranged(const Tensor& x, const OptionalTensor& from) {
    if (!from) {
      return x;
    }
    const c10::SymInt same = -1;
    const auto index = from->unsqueeze(1).expand_symint({same, x.sym_size(1), same});
    return x.expand_symint({index.sym_size(0), same, same}).gather(2, index);
  }

  OptionalTensor sorted_, back_;
};

}  // namespace

DecaySums sum_decays(const Call& c, at::ScalarType type) {
  const SegmentOrder order(c);
  const Tensor decays = order.enter(c[kLogDecay].to(type));
  const Tensor defined = decays < kInfinity;
  return {order.leave(at::where(defined, decays.clamp_min(kLowestDecay), 0.0).cumsum(2)),
          order.leave(defined.logical_not().cumsum(2))};
}

DecaySums sum_decays_on_cpu(const Call& c) {
  struct Running {
    double sum = 0.0;
    int64_t undefined = 0;
  };
  const Tensor& decays = c[kLogDecay];
  const Tensor ids = c.segment_ids ? c.segment_ids->to(at::kLong).contiguous() : Tensor();
  const int64_t batch = ids.defined() ? ids.size(0) : decays.size(0), heads = decays.size(1), keys = decays.size(2);
  DecaySums result;
  result.sums = at::empty({batch, heads, keys}, at::kDouble).copy_(decays);
  double* sums = result.sums.mutable_data_ptr<double>();
  int64_t* undefined = nullptr;
  for (int64_t row = 0; row < batch * heads; ++row) {
    const int64_t* id = ids.defined() ? ids.const_data_ptr<int64_t>() + row / heads * keys : nullptr;
    Running now;
    std::unordered_map<int64_t, Running> left;  // segments that were left and may come again
    for (int64_t k = 0; k < keys; ++k) {
      if (id != nullptr && k > 0 && id[k] != id[k - 1]) {
        left[id[k - 1]] = now;
        now = left[id[k]];
      }
      const int64_t at = row * keys + k;
      if (sums[at] < kInfinity) {
        now.sum += std::max(sums[at], kLowestDecay);
      } else {
        ++now.undefined;
        if (undefined == nullptr) {
          result.undefined = at::zeros({batch, heads, keys}, at::kLong);
          undefined = result.undefined.mutable_data_ptr<int64_t>();
        }
      }
      sums[at] = now.sum;
      if (undefined != nullptr) {
        undefined[at] = now.undefined;
      }
    }
  }
  return result;
}

Tensor gradient_of_decays(const Call& c, const Tensor& of_sums) {
  const SegmentOrder order(c);
  const Tensor& decays = c[kLogDecay];
  // A token's decay is in the sums of all tokens of its segment from it on. (Those of a segment behind cancel.)
  const Tensor each = order.leave(order.enter(of_sums).flip(2).cumsum(2).flip(2));
  const Tensor gradient = at::where((decays >= kLowestDecay).logical_and(decays < kInfinity), each, 0.0);
  return decays.sym_size(0) == 1 ? gradient.sum(0, /*keepdim=*/true) : gradient;
}

}  // namespace posenc::attention_ops
