#pragma once

/// A logit that takes part in a softmax and has no value.

#include <cmath>
#include <limits>

namespace posenc::attention_ops {

/// The logit of none.
inline constexpr double kNoSink = -std::numeric_limits<double>::infinity();

/// Adds a sink to a row's softmax, all in base 2: to its largest score and to the sum of 2^(score - largest). Returns
/// what the sum of values is to be multiplied by.
inline double join_sink(double sink, double& largest, double& total) {
  if (sink == kNoSink) {
    return 1.0;
  }
  const double before = total == 0.0 ? kNoSink : largest;
  largest = sink > before || sink != sink ? sink : before;
  const double factor = std::exp2(before - largest);
  total = total * factor + std::exp2(sink - largest);
  return factor;
}

}  // namespace posenc::attention_ops
