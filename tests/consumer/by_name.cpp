// Calls an op by its name alone: linking posenc::posenc must load libposenc though no symbol of it is used.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <iostream>
#include <vector>

int main() {
  const auto op = c10::Dispatcher::singleton().findSchema({"posenc::apply_rotary", ""});
  if (!op) {
    std::cerr << "posenc::apply_rotary is not registered\n";
    return 1;
  }
  const at::Tensor x = at::ones({1, 1, 1, 4});
  const at::Tensor cos = at::zeros({1, 2});
  const at::Tensor sin = at::ones({1, 2});
  std::vector<c10::IValue> stack{x, cos, sin, /*interleaved=*/false, /*inverse=*/false};
  op->callBoxed(stack);
  // A quarter turn of the pairs (1, 1) gives (-1, 1).
  const at::Tensor expected = at::tensor({-1.0f, -1.0f, 1.0f, 1.0f}).view({1, 1, 1, 4});
  if (!at::allclose(stack.at(0).toTensor(), expected)) {
    std::cerr << "posenc::apply_rotary gave " << stack.at(0).toTensor() << "\n";
    return 1;
  }
}
