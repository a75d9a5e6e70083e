#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lm {

/// What training did.
struct TrainResult {
  int64_t steps = 0;
  double seconds = 0.0;
  /// (step, smoothed training loss in bits per byte).
  std::vector<std::pair<int64_t, double>> curve;
  /// Why it ended early, or empty.
  std::string stopped;
};

/// Losses by position are averaged over this many neighbouring positions.
inline constexpr int64_t kPositionBucket = 32;

/// Mean loss of one model under one scaling, read in windows of one length; absent where it is not defined there.
struct Score {
  std::string encoding;
  std::string scaling;
  int64_t length = 0;
  std::optional<double> bits_per_byte;
  std::vector<double> by_position;
};

}  // namespace lm
