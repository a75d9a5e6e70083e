#pragma once

#include "options.h"
#include "results.h"

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lm {

/// A line on the terminal with a bar, a note and the time left; where the output is no terminal, about ten plain lines.
class Progress {
 public:
  Progress(std::string title, int64_t total);
  /// Ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t step, const std::string& note);

 private:
  std::string title_;
  int64_t total_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point drawn_;
};

/// Prints bits per byte by scaling and window length; the best of each length has a star, what was not scored a dash.
/// `titles` has a name for each encoding.
void print_table(const std::vector<Score>& scores, int64_t trained, const std::vector<int64_t>& lengths,
                 const std::map<std::string, std::string>& titles);

/// A run: what it was given, how training went, every score.
struct Run {
  std::string data;
  int64_t files = 0;
  int64_t train_bytes = 0;
  int64_t validation_bytes = 0;
  int64_t scored_bytes = 0;
  ModelOptions model;
  uint64_t seed = 0;
  int threads = 0;
  double seconds = 0.0;
  bool interrupted = false;
  /// By encoding.
  std::map<std::string, TrainResult> training;
  std::vector<Score> scores;
};

/// Writes the run with the same keys as the Python program.
void write_json(const std::string& path, const Run& run);

}  // namespace lm
