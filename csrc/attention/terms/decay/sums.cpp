#include "attention/terms/decay/sums.h"

#include "attention/reference/operands.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace posenc::attention_ops {
namespace {

using reference::kInfinity;
using reference::kNaN;

/// The way from the order of tokens to one in which those of a segment are neighbours, and back.
class SegmentOrder {
 public:
  explicit SegmentOrder(const Call& c) {
    if (c.segment_ids) {
      const Tensor ids = c.segment_ids->to(at::kLong);
      sorted_ = ids.argsort(/*stable=*/true, /*dim=*/1);
      back_ = sorted_->argsort(/*dim=*/int64_t{1});
      ids_ = ids.gather(1, *sorted_);
    }
  }

  /// x (1 or B, H, Tk).
  Tensor enter(const Tensor& x) const { return sorted_ ? at_places(x, *sorted_) : x; }
  Tensor leave(const Tensor& x) const { return back_ ? at_places(x, *back_) : x; }

  /// For each token t the sum of x, which has entered, over tokens >= t of its segment. What is not finite
  /// stays in its segment.
  Tensor sums_from(const Tensor& x) const {
    const auto from = [](const Tensor& y) { return y.flip(2).cumsum(2).flip(2); };
    if (!ids_) {
      return from(x);
    }
    // Where the next segment begins.
    const Tensor behind = at::searchsorted(*ids_, *ids_, /*out_int32=*/false, /*right=*/true);
    const auto within = [&](const Tensor& y) {
      const Tensor sums = from(y);
      return sums - at_places(at::constant_pad_nd(sums, {0, 1}), behind);
    };
    const Tensor finite = x.isfinite();
    return at::where(within(finite.logical_not().to(x.scalar_type())) > 0, kNaN, within(at::where(finite, x, 0.0)));
  }

 private:
  /// Rows of either may be those of all batch rows.
  static Tensor at_places(const Tensor& x, const Tensor& places) {
    const c10::SymInt same = -1, batch = x.sym_size(0) == 1 ? places.sym_size(0) : x.sym_size(0);
    const Tensor index = places.unsqueeze(1).expand_symint({batch, x.sym_size(1), same});
    return x.expand_symint({batch, same, same}).gather(2, index);
  }

  /// Places of tokens, and their segments in order.
  OptionalTensor sorted_, back_, ids_;
};

/// The segments of each batch row's tokens, on the CPU.
class SegmentRows {
 public:
  explicit SegmentRows(const Call& c) : ids_(c.segment_ids ? c.segment_ids->to(at::kLong).contiguous() : Tensor()) {}
  /// Null: all are of one.
  const int64_t* row(int64_t batch) const {
    return ids_.defined() ? ids_.const_data_ptr<int64_t>() + (ids_.size(0) == 1 ? 0 : batch) * ids_.size(1) : nullptr;
  }
  /// Batch rows, 1 where they are all alike.
  int64_t rows() const { return ids_.defined() ? ids_.size(0) : 1; }

 private:
  Tensor ids_;
};

/// A value for each segment of a row of tokens.
template <typename Value>
class BySegment {
 public:
  explicit BySegment(const int64_t* ids) : ids_(ids) {}
  /// That of a token's segment.
  Value& of(int64_t token) {
    const int64_t id = ids_ == nullptr ? 0 : ids_[token];
    if (at_hand_ == nullptr || id != id_) {
      id_ = id;
      at_hand_ = &values_[id];
    }
    return *at_hand_;
  }

 private:
  const int64_t* ids_;
  std::unordered_map<int64_t, Value> values_;
  int64_t id_ = 0;
  Value* at_hand_ = nullptr;
};

/// The gradient of log_decay from those of the numbers that its entries count as.
Tensor of_counted(const Call& c, const Tensor& each) {
  const Tensor& decays = c[kLogDecay];
  const Tensor gradient = at::where((decays >= kLowestDecay).logical_and(decays < kInfinity), each, 0.0);
  return decays.sym_size(0) == 1 ? gradient.sum(0, /*keepdim=*/true) : gradient;
}

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
  const SegmentRows segments(c);
  const Tensor& decays = c[kLogDecay];
  const int64_t batch = std::max(segments.rows(), decays.size(0));
  const int64_t heads = decays.size(1), keys = decays.size(2);
  DecaySums result;
  result.sums = at::empty({batch, heads, keys}, at::kDouble).copy_(decays);
  double* sums = result.sums.mutable_data_ptr<double>();
  int64_t* undefined = nullptr;
  for (int64_t row = 0; row < batch * heads; ++row) {
    BySegment<Running> running(segments.row(row / heads));
    for (int64_t k = 0, at = row * keys; k < keys; ++k, ++at) {
      Running& now = running.of(k);
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

Tensor gradient_of_decays_on_cpu(const Call& c, const Tensor& of_sums) {
  const SegmentRows segments(c);
  const int64_t batch = of_sums.size(0), heads = of_sums.size(1), keys = of_sums.size(2);
  const Tensor gradient = of_sums.contiguous();
  double* each = gradient.mutable_data_ptr<double>();
  for (int64_t row = 0; row < batch * heads; ++row) {
    BySegment<double> running(segments.row(row / heads));
    for (int64_t k = keys - 1; k >= 0; --k) {
      each[row * keys + k] = running.of(k) += each[row * keys + k];
    }
  }
  return of_counted(c, gradient);
}

Tensor gradient_of_decays(const Call& c, const Tensor& of_sums) {
  const SegmentOrder order(c);
  // A token's decay is in the sums of all tokens of its segment from it on.
  return of_counted(c, order.leave(order.sums_from(order.enter(of_sums))));
}

}  // namespace posenc::attention_ops
