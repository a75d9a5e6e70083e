/// Context extension on real text, in C++ alone: `train_lm --help`.

#include "lm/data.h"
#include "lm/encodings.h"
#include "lm/error.h"
#include "lm/evaluate.h"
#include "lm/interrupt.h"
#include "lm/model.h"
#include "lm/options.h"
#include "lm/report.h"
#include "lm/scalings.h"
#include "lm/train.h"
#include "lm/weights.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

namespace lm {
namespace {

std::string bits_text(double bits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << bits << " bits/byte";
  return text.str();
}

/// The models to train: saved weights, or one new model for each encoding, all from the same seed.
std::vector<LanguageModel> starting_models(const Options& options) {
  if (options.weights) {
    return {load_weights(*options.weights)};
  }
  std::vector<LanguageModel> models;
  for (const auto& encoding : options.encodings) {
    torch::manual_seed(options.training.seed);
    ModelOptions model = options.model;
    model.encoding = encoding;
    models.push_back(LanguageModel(model));
  }
  return models;
}

void describe(const Corpus& corpus, const LanguageModel& start, const TrainOptions& training) {
  int64_t parameters = 0;
  for (const auto& parameter : start->parameters()) {
    parameters += parameter.numel();
  }
  const auto millions = [](int64_t count) { return static_cast<double>(count) / 1e6; };
  const ModelOptions& model = start->options;
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << corpus.path.string() << ": " << corpus.files << " files";
  if (corpus.files_left_out > 0) {
    text << ", " << corpus.files_left_out << " more left out";
  }
  text << ", " << millions(corpus.train.numel()) << " MB to train on, " << millions(corpus.validation.numel())
       << " MB held out\n"
       << model.layers << " layers, width " << model.width << ", " << model.heads << " heads, " << millions(parameters)
       << " million parameters, context " << model.context << "\n"
       << std::defaultfloat << std::setprecision(6) << training.steps << " steps of " << training.batch
       << " windows, at most " << training.time_limit << " s";
  std::cout << text.str() << std::endl;
}

/// Trains with a progress line; the weights are on disk when it returns.
TrainResult train_and_save(LanguageModel& start, const Corpus& corpus, const Options& options) {
  const TrainOptions& training = options.training;
  if (training.steps == 0) {
    return {};
  }
  const std::string& encoding = start->options.encoding;
  TrainResult result;
  {
    Progress progress("training " + encoding, training.steps);
    result = train(start, corpus.train, training,
                   [&](int64_t step, double loss) { progress.advance(step, "loss " + bits_text(loss)); });
  }
  const std::string path = options.out + "/weights-" + encoding + ".pt";
  save_weights(start, path);
  if (!result.stopped.empty()) {
    std::cout << result.stopped << " after " << result.steps << " of " << training.steps << " steps; weights kept in "
              << path << std::endl;
  }
  return result;
}

std::vector<Score> score(LanguageModel& start, const at::Tensor& segments, const std::vector<int64_t>& lengths,
                         const Options& options) {
  // An encoding without frequencies has nothing to scale.
  const bool rescalable = find_encoding(start->options.encoding).rescalable;
  const std::vector<std::string> scalings = rescalable ? options.scalings : std::vector<std::string>{"none"};
  Progress progress("scoring " + start->options.encoding, static_cast<int64_t>(scalings.size() * lengths.size()));
  int64_t done = 0;
  return evaluate(start, segments, scalings, lengths, [&](const Score& result) {
    const std::string bits = result.bits_per_byte ? bits_text(*result.bits_per_byte) : "not defined";
    progress.advance(++done, result.scaling + " at " + std::to_string(result.length) + ": " + bits);
  });
}

void run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  if (options.threads) {
    at::set_num_threads(*options.threads);
  }
  std::filesystem::create_directories(options.out);
  std::vector<LanguageModel> models = starting_models(options);
  const Corpus corpus = load_corpus(options.data);
  const int64_t context = models.front()->options.context;
  std::vector<int64_t> lengths;
  for (const int64_t factor : kLengthFactors) {
    lengths.push_back(factor * context);
  }
  check_size(corpus, context, lengths.back());
  const at::Tensor segments = validation_segments(corpus.validation, options.windows, lengths.back());
  describe(corpus, models.front(), options.training);

  Run report{.data = corpus.path.string(),
             .files = corpus.files,
             .train_bytes = corpus.train.numel(),
             .validation_bytes = corpus.validation.numel(),
             .scored_bytes = segments.size(0) * lengths.back(),
             .model = models.front()->options,
             .seed = options.training.seed,
             .threads = at::get_num_threads(),
             .training = {},
             .scores = {}};
  for (auto& model : models) {
    if (ever_interrupted()) {
      break;
    }
    report.training[model->options.encoding] = train_and_save(model, corpus, options);
    clear_interrupt();
    for (auto& result : score(model, segments, lengths, options)) {
      report.scores.push_back(std::move(result));
    }
  }

  if (!report.scores.empty()) {
    std::map<std::string, std::string> titles;
    for (const auto& encoding : encodings()) {
      titles[encoding.name] = encoding.title;
    }
    print_table(report.scores, context, lengths, titles);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.interrupted = ever_interrupted();
  write_json(options.out + "/results.json", report);
  std::cout << "numbers and weights are in " << options.out << std::endl;
}

/// Threads that spin while they wait cost a busy machine far more than they save. OpenMP reads the policy when it is
/// loaded, before main, so the program starts once more.
void make_threads_sleep_when_idle(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/1) == 0) {
    execv("/proc/self/exe", arguments);
  }
}

}  // namespace
}  // namespace lm

int main(int count, char** arguments) {
  using namespace lm;
  make_threads_sleep_when_idle(arguments);
  int status = 1;
  try {
    const Options options = parse_options({arguments + 1, arguments + count}, encoding_names(), scaling_names());
    if (options.help) {
      std::cout << help_text(encoding_names(), scaling_names());
      return 0;
    }
    catch_interrupts();
    run(options);
    return ever_interrupted() ? 130 : 0;
  } catch (const UsageError& error) {
    std::cerr << "train_lm: error: " << error.what() << std::endl;
    status = 2;
  } catch (const UserError& error) {
    std::cerr << "train_lm: error: " << error.what() << std::endl;
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << "train_lm: error: " << error.path1().string() << ": " << error.code().message() << std::endl;
  }
  return status;
}
