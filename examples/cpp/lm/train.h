#pragma once

#include "model.h"
#include "options.h"
#include "results.h"

#include <functional>
#include <numbers>

namespace lm {

inline constexpr double kBitsPerNat = std::numbers::log2e;

/// Trains in place with AdamW, a warm-up and a cosine decay, and reports (step, smoothed loss in bits per byte) after
/// each step. Ends early, with the weights as they are, on Ctrl-C or past the time limit. Throws UserError where the
/// loss becomes infinite or NaN.
TrainResult train(LanguageModel& model, const at::Tensor& text, const TrainOptions& options,
                  const std::function<void(int64_t step, double loss)>& on_step);

}  // namespace lm
