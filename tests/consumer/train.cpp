// A posenc module inside torch::nn::Sequential: one training step, then save and load.
#include <posenc/posenc.h>

#include <torch/torch.h>

#include <iostream>
#include <sstream>

namespace {

constexpr int64_t kHeadDim = 8;

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(
      torch::nn::Linear(kHeadDim, kHeadDim),
      posenc::nn::Rotary(posenc::nn::RotaryOptions(kHeadDim).scaling(posenc::scaling::Yarn(4.0, 32)).learnable(true)));
}

int fail(const char* what) {
  std::cerr << "consumer: " << what << "\n";
  return 1;
}

}  // namespace

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model = make_model();
  const torch::Tensor x = torch::randn({2, 3, 16, kHeadDim});
  const torch::Tensor target = torch::randn({2, 3, 16, kHeadDim});
  const auto loss_of = [&](torch::nn::Sequential& m) { return torch::mse_loss(m->forward(x), target); };

  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
  const torch::Tensor before = loss_of(model);
  before.backward();
  for (const auto& parameter : model->named_parameters()) {
    if (!parameter.value().grad().defined()) {
      return fail("a parameter has no gradient");
    }
  }
  optimizer.step();
  torch::NoGradGuard no_grad;
  const torch::Tensor after = loss_of(model);
  if (!(after.item<float>() < before.item<float>())) {
    return fail("the training step did not lower the loss");
  }

  std::stringstream file;
  torch::save(model, file);
  torch::nn::Sequential loaded = make_model();
  torch::load(loaded, file);
  if (!torch::equal(loss_of(loaded), after)) {
    return fail("the loaded model differs from the saved one");
  }
  std::cout << "posenc " << posenc::version() << " on " << posenc::cpu_capability() << ": loss " << before.item<float>()
            << " -> " << after.item<float>() << "\n"
            << model << "\n";
}
