#include "evaluate.h"

#include "interrupt.h"
#include "scalings.h"
#include "train.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

namespace lm {
namespace {

constexpr int64_t kTokensPerBatch = 4096;

/// Loss in nats of every predicted byte, (windows, length); nothing when interrupted.
std::optional<at::Tensor> window_losses(LanguageModel& model, const at::Tensor& segments, int64_t length) {
  const at::NoGradGuard no_grad;
  const int64_t longest = segments.size(1) - 1;
  const int64_t rows = std::max<int64_t>(1, kTokensPerBatch / length);
  const auto inputs = segments.narrow(1, 0, longest).reshape({-1, length}).split(rows);
  const auto targets = segments.narrow(1, 1, longest).reshape({-1, length}).split(rows);
  std::vector<at::Tensor> losses;
  for (size_t index = 0; index < inputs.size(); ++index) {
    const at::Tensor logits = model(inputs[index]);
    losses.push_back(
        at::cross_entropy_loss(logits.flatten(0, 1), targets[index].flatten(), /*weight=*/{}, at::Reduction::None)
            .view({-1, length}));
    if (interrupted()) {
      return std::nullopt;
    }
  }
  return at::cat(losses);
}

}  // namespace

std::vector<Score> evaluate(LanguageModel& model, const at::Tensor& segments, const std::vector<std::string>& scalings,
                            const std::vector<int64_t>& lengths,
                            const std::function<void(const Score& score)>& on_score) {
  std::vector<Score> scores;
  model->eval();
  const int64_t trained = model->options.context;
  const bool bounded = find_encoding(model->options.encoding).bounded;
  for (const auto& name : scalings) {
    for (const int64_t length : lengths) {
      Score score{model->options.encoding, name, length, std::nullopt, {}};
      if (bounded && length > trained) {
        on_score(score);
        scores.push_back(std::move(score));
        continue;
      }
      rescale(*model, find_scaling(name).make(trained, length));
      const auto losses = window_losses(model, segments, length);
      rescale(*model, {});
      if (!losses) {
        return scores;
      }
      const at::Tensor bits = losses->to(at::kDouble) * kBitsPerNat;
      score.bits_per_byte = bits.mean().item<double>();
      for (const auto& part : bits.mean(/*dim=*/0).split(kPositionBucket)) {
        score.by_position.push_back(part.mean().item<double>());
      }
      on_score(score);
      scores.push_back(std::move(score));
    }
  }
  return scores;
}

}  // namespace lm
