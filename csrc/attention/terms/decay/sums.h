#pragma once

/// Sums of log_decay: the bias of a query and a key is the difference of theirs.

#include "attention/call.h"

namespace posenc::attention_ops {

/// Entries of log_decay below count as this one: sums keep their digits, and a weight of exp(-100000) is 0.
inline constexpr double kLowestDecay = -1e5;

struct DecaySums {
  /// The decays of the tokens of a segment up to each, (1 or B, H, Tk).
  Tensor sums;
  /// How many of these are no numbers that a bias could have (NaN and infinity), int64. They count as 0 in `sums`, and
  /// a query and a key with such a decay between them have the bias NaN: others do not meet it.
  Tensor undefined;
};

DecaySums sum_decays(const Call& c, at::ScalarType type);
/// The same in float64 on the CPU, in one pass. `undefined` is there only where a decay is.
DecaySums sum_decays_on_cpu(const Call& c);

/// The gradient of log_decay that follows from that of sums (B, H, Tk): 0 for decays that count as another number.
Tensor gradient_of_decays(const Call& c, const Tensor& of_sums);
/// The same on the CPU, of float64, which is written to.
Tensor gradient_of_decays_on_cpu(const Call& c, const Tensor& of_sums);

}  // namespace posenc::attention_ops
