#include "train.h"

#include "data.h"
#include "error.h"
#include "interrupt.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lm {
namespace {

/// Fraction of the learning rate at a step from 1 on: linear warm-up, cosine decay to a fiftieth.
double schedule(int64_t step, const TrainOptions& options) {
  const double done = static_cast<double>(step - 1) / static_cast<double>(options.steps);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return std::min(1.0, static_cast<double>(step) / static_cast<double>(options.warm_up)) * (0.02 + 0.98 * cosine);
}

}  // namespace

TrainResult train(LanguageModel& model, const at::Tensor& text, const TrainOptions& options,
                  const std::function<void(int64_t step, double loss)>& on_step) {
  torch::optim::AdamW optimizer(
      model->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.98}).weight_decay(options.weight_decay));
  const at::Generator generator = at::detail::createCPUGenerator(options.seed);
  TrainResult result;
  double smoothed = 0.0;
  const auto begin = std::chrono::steady_clock::now();
  model->train();
  for (int64_t step = 1; step <= options.steps && result.stopped.empty(); ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(options.learning_rate * schedule(step, options));
    }
    const auto [inputs, targets] = training_batch(text, options.batch, model->options.context, generator);
    const at::Tensor loss = at::cross_entropy_loss(model(inputs).flatten(0, 1), targets.flatten());
    optimizer.zero_grad();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), options.clip);
    optimizer.step();

    const double bits = loss.item<double>() * kBitsPerNat;
    if (!std::isfinite(bits)) {
      throw UserError("training diverged: the loss is " + std::to_string(bits) + " at step " + std::to_string(step));
    }
    smoothed = step == 1 ? bits : 0.95 * smoothed + 0.05 * bits;
    result.steps = step;
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (step % 10 == 0 || step == options.steps) {
      result.curve.emplace_back(step, smoothed);
    }
    on_step(step, smoothed);
    if (interrupted()) {
      result.stopped = "interrupted";
    } else if (result.seconds > options.time_limit) {
      result.stopped = "time limit";
    }
  }
  return result;
}

}  // namespace lm
