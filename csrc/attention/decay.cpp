#include "attention/decay.h"

#include <ATen/ATen.h>

#include <limits>

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

Tensor gradient_of_decays(const Call& c, const Tensor& of_sums) {
  const SegmentOrder order(c);
  const Tensor& decays = c[kLogDecay];
  // A token's decay is in the sums of all tokens of its segment from it on. (Those of a segment behind cancel.)
  const Tensor each = order.leave(order.enter(of_sums).flip(2).cumsum(2).flip(2));
  const Tensor gradient = at::where((decays >= kLowestDecay).logical_and(decays < kInfinity), each, 0.0);
  return decays.sym_size(0) == 1 ? gradient.sum(0, /*keepdim=*/true) : gradient;
}

}  // namespace posenc::attention_ops
