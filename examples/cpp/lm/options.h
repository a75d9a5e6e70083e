#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lm {

/// Size and encoding of a model, and the length of the windows that it is trained on.
struct ModelOptions {
  std::string encoding = "rotary";
  int64_t layers = 3;
  int64_t width = 128;
  int64_t heads = 4;
  /// Bytes in a training window.
  int64_t context = 128;
};

/// How long and how fast to train.
struct TrainOptions {
  int64_t steps = 1200;
  int64_t batch = 16;
  double learning_rate = 4e-3;
  int64_t warm_up = 50;
  double weight_decay = 0.1;
  double clip = 1.0;
  uint64_t seed = 0;
  /// In seconds.
  double time_limit = 200.0;
};

/// All that a run depends on.
struct Options {
  /// A file or a folder; absent: Python's standard library.
  std::optional<std::string> data;
  std::string out = "out/train_lm_cpp";
  std::optional<std::string> weights;
  std::vector<std::string> encodings = {"rotary"};
  std::vector<std::string> scalings = {"none", "linear", "ntk", "dynamic-ntk", "yarn"};
  /// Held-out windows of the longest length to score.
  int64_t windows = 32;
  /// Absent: as many as torch takes.
  std::optional<int> threads;
  ModelOptions model;
  TrainOptions training;
  bool help = false;
};

/// Window lengths of the evaluation, in trained contexts.
inline constexpr int64_t kLengthFactors[] = {1, 2, 4, 8};

/// Reads the command line, given the names that --encodings and --scalings know. Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments, const std::vector<std::string>& known_encodings,
                      const std::vector<std::string>& known_scalings);

/// The text of --help.
std::string help_text(const std::vector<std::string>& known_encodings, const std::vector<std::string>& known_scalings);

}  // namespace lm
