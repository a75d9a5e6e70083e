#pragma once

#include "model.h"
#include "results.h"

#include <functional>
#include <string>
#include <vector>

namespace lm {

/// Scores each scaling and length, and calls `on_score` after each; ends early on Ctrl-C.
///
/// segments (S, longest + 1) int64. Every length predicts the same bytes: a segment of 1024 is one window of 1024 or
/// eight of 128.
std::vector<Score> evaluate(LanguageModel& model, const at::Tensor& segments, const std::vector<std::string>& scalings,
                            const std::vector<int64_t>& lengths,
                            const std::function<void(const Score& score)>& on_score);

}  // namespace lm
