/// The schemas of the ops for encodings on two axes, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/grid/ops.h"

#include <vector>

namespace posenc::grid_ops {
namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def(
      "_grid_positions(Tensor query, Tensor key, int[] size, bool class_token, str module) -> (Tensor q_positions, "
      "Tensor k_positions)",
      tags);
  m.def("_grid_table(Tensor rows, Tensor query, int[] window, bool class_token) -> Tensor", tags);
  m.def(
      "_continuous_grid_rows(Tensor weight_in, Tensor bias_in, Tensor weight_out, Tensor query, int[] window) -> "
      "Tensor",
      tags);
}

}  // namespace

std::tuple<Tensor, Tensor> grid_positions(const Tensor& query, const Tensor& key, at::IntArrayRef size,
                                          bool class_token, const std::string& module) {
  using Result = std::tuple<Tensor, Tensor>;
  static const auto op =
      find_op<Result(const Tensor&, const Tensor&, at::IntArrayRef, bool, std::string_view)>("posenc::_grid_positions");
  return op.call(query, key, size, class_token, module);
}

Tensor grid_table(const Tensor& rows, const Tensor& query, at::IntArrayRef window, bool class_token) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, at::IntArrayRef, bool)>("posenc::_grid_table");
  return op.call(rows, query, window, class_token);
}

Tensor continuous_grid_rows(const Tensor& weight_in, const Tensor& bias_in, const Tensor& weight_out,
                            const Tensor& query, at::IntArrayRef window) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef)>(
      "posenc::_continuous_grid_rows");
  return op.call(weight_in, bias_in, weight_out, query, window);
}

}  // namespace posenc::grid_ops
