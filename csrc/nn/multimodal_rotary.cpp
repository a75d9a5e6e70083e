#include <posenc/nn/multimodal_rotary.h>

#include "nn/describe.h"
#include "nn/rotary_call.h"

#include <c10/util/irange.h>

#include <numeric>

namespace posenc::nn {
namespace {

int64_t width(const MultimodalRotaryOptions& o) { return o.rotary_dim().value_or(o.head_dim()); }

void check(const MultimodalRotaryOptions& o) {
  check_options("MultimodalRotary", o);
  check_rotary_width("MultimodalRotary", o.head_dim(), o.rotary_dim() ? "rotary_dim" : "head_dim", width(o));
  const auto& sections = o.sections();
  const bool positive =
      std::all_of(sections.begin(), sections.end(), [&](int64_t s) { return s >= 0 && s <= width(o); });
  const int64_t sum = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  TORCH_CHECK_VALUE(!sections.empty() && positive && sum == width(o) / 2,
                    "MultimodalRotary: expected sections that add up to half the rotary width, ", width(o) / 2,
                    ", but got ", at::IntArrayRef(sections));
  if (!o.interleaved_sections()) {
    return;
  }
  // Pair c belongs to axis c % axes while that axis has pairs left, else to axis 0. So the last pair of an axis > 0,
  // (sections[axis] - 1) * axes + axis, must exist.
  const int64_t axes = static_cast<int64_t>(sections.size());
  for (const auto axis : c10::irange(int64_t{1}, axes)) {
    TORCH_CHECK_VALUE(sections[axis] == 0 || (sections[axis] - 1) * axes + axis < sum,
                      "MultimodalRotary: expected interleaved sections to fit into ", sum,
                      " pairs in turns, but section ", axis, " of ", at::IntArrayRef(sections), " does not");
  }
}

}  // namespace

MultimodalRotaryImpl::MultimodalRotaryImpl(MultimodalRotaryOptions options) : options(std::move(options)) { reset(); }

void MultimodalRotaryImpl::reset() {
  check(options);
  frequencies_ = frequencies(options.seq_len());
}

void MultimodalRotaryImpl::pretty_print(std::ostream& stream) const {
  auto shown = options;
  shown.rotary_dim(width(options));
  print_options(stream, "MultimodalRotary", shown);
}

scaling::Frequencies MultimodalRotaryImpl::frequencies(std::optional<int64_t> seq_len) const {
  return scaling::frequencies(width(options), options.base(), options.scaling(), seq_len, options.exact());
}

std::vector<int64_t> MultimodalRotaryImpl::axes() const {
  const auto& sections = options.sections();
  const int64_t count = static_cast<int64_t>(sections.size());
  std::vector<int64_t> axes;
  if (!options.interleaved_sections()) {
    for (const auto axis : c10::irange(count)) {
      axes.insert(axes.end(), sections[axis], axis);
    }
    return axes;
  }
  for (const auto pair : c10::irange(width(options) / 2)) {
    const int64_t axis = pair % count;
    axes.push_back(pair < count * sections[axis] ? axis : 0);
  }
  return axes;
}

at::Tensor MultimodalRotaryImpl::frequencies_for(const at::Tensor& x, const RotaryForwardOptions& call) const {
  return frequencies_for_call("MultimodalRotary", frequencies_.inv_freq, options.scaling(), width(options),
                              options.base(), options.exact(), options.seq_len(), x, call);
}

RotaryFuncOptions MultimodalRotaryImpl::op_options(const RotaryForwardOptions& call) const {
  const int64_t count = static_cast<int64_t>(options.sections().size());
  if (call.positions()) {
    TORCH_CHECK_VALUE(call.positions()->dim() >= 2 && call.positions()->size(0) == count,
                      "MultimodalRotary: expected positions of shape (axes, length) or (axes, batch, length) with ",
                      count, " axes, but got ", call.positions()->sizes());
  }
  return RotaryFuncOptions()
      .attention_scaling(frequencies_.attention_scaling)
      .interleaved(options.interleaved())
      .axes(axes())
      .exact(options.exact())
      .offset(call.offset())
      .offsets(call.offsets());
}

at::Tensor MultimodalRotaryImpl::forward(const at::Tensor& x, const RotaryForwardOptions& call) {
  check_call_shape("MultimodalRotary", options.head_dim(), x);
  return posenc::rotary(x, call.positions(), frequencies_for(x, call), op_options(call));
}

std::tuple<at::Tensor, at::Tensor> MultimodalRotaryImpl::forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                                    const RotaryForwardOptions& call) {
  check_call_shape("MultimodalRotary", options.head_dim(), q);
  return posenc::rotary_qk(q, k, call.positions(), frequencies_for(q, call), op_options(call));
}

}  // namespace posenc::nn
