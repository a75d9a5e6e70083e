#include "bindings.h"

#include <posenc/positions.h>

#include <string>
#include <tuple>
#include <utility>

namespace {

using Grid = std::tuple<int64_t, int64_t, int64_t>;
using NamedSpan = std::pair<std::string, std::variant<int64_t, Grid>>;

posenc::Span to_span(const NamedSpan& named) {
  const auto& [kind, size] = named;
  if (kind == "text" && std::holds_alternative<int64_t>(size)) return posenc::TextSpan{std::get<int64_t>(size)};
  TORCH_CHECK_VALUE((kind == "image" || kind == "video") && std::holds_alternative<Grid>(size),
                    "multimodal_positions: expected spans ('text', length), ('image', (t, h, w)) or "
                    "('video', (t, h, w)), but got one named '",
                    kind, "' with ", std::holds_alternative<Grid>(size) ? "three numbers" : "one number");
  const auto& [frames, height, width] = std::get<Grid>(size);
  return posenc::GridSpan{frames, height, width};
}

}  // namespace

/// posenc._C.positions.
void bind_positions(pybind11::module_& m) {
  using namespace posenc::python;
  define(
      m, "multimodal_positions",
      [](const std::vector<NamedSpan>& named) {
        std::vector<posenc::Span> spans;
        spans.reserve(named.size());
        for (const NamedSpan& span : named) spans.push_back(to_span(span));
        return posenc::multimodal_positions(spans);
      },
      py::arg("spans"));
}
