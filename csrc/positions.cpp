#include "common/checks.h"
#include "common/dispatch.h"
#include "common/registration.h"

#include <posenc/positions.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/repeat_interleave.h>

#include <algorithm>

namespace posenc {
namespace {

at::Tensor positions_from_mask_composite(const at::Tensor& mask) {
  check_dense("positions_from_mask", "mask", mask);
  TORCH_CHECK_TYPE(at::isIntegralType(mask.scalar_type(), /*includeBool=*/true),
                   "positions_from_mask: expected mask to be bool or integer, but got ", mask.scalar_type());
  TORCH_CHECK_VALUE(mask.dim() == 1 || mask.dim() == 2,
                    "positions_from_mask: expected mask of shape (T) or (B, T), but got ", mask.sym_sizes());
  const at::Tensor shown = mask.ne(0);
  return shown.cumsum(-1, at::kLong).sub(1).masked_fill(shown.logical_not(), 0);
}

void check_cu_seqlens(const char* op, const at::Tensor& cu_seqlens) {
  check_dense(op, "cu_seqlens", cu_seqlens);
  TORCH_CHECK_TYPE(at::isIntegralType(cu_seqlens.scalar_type(), /*includeBool=*/false), op,
                   ": expected cu_seqlens to be integer, but got ", cu_seqlens.scalar_type());
  TORCH_CHECK_VALUE(cu_seqlens.dim() == 1, op, ": expected cu_seqlens of shape (N + 1), but got ",
                    cu_seqlens.sym_sizes());
}

/// The length of each packed sequence (N), int64, on the device of cu_seqlens.
at::Tensor checked_lengths(const char* op, const at::Tensor& cu_seqlens, int64_t total) {
  check_cu_seqlens(op, cu_seqlens);
  TORCH_CHECK_VALUE(cu_seqlens.numel() > 0, op, ": expected cu_seqlens to start with 0, but it is empty");
  const at::Tensor on_cpu = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = on_cpu.const_data_ptr<int64_t>();
  const int64_t* last = first + on_cpu.numel() - 1;
  TORCH_CHECK_VALUE(*first == 0, op, ": expected cu_seqlens to start with 0, but got ", *first);
  TORCH_CHECK_VALUE(std::is_sorted(first, last + 1), op, ": expected cu_seqlens not to decrease, but got ",
                    c10::IntArrayRef(first, last + 1));
  TORCH_CHECK_VALUE(*last == total, op, ": expected cu_seqlens to end with total ", total, ", but got ", *last);
  return cu_seqlens.to(at::kLong).diff();
}

/// 0 .. N-1, each as often as `lengths` (N) says.
at::Tensor repeated_indices(const at::Tensor& lengths, int64_t total) {
  // Without the type this would be the overload that repeats every element `total` times.
  return at::repeat_interleave(lengths, std::optional<int64_t>(total));
}

at::Tensor segments_kernel(const at::Tensor& cu_seqlens, c10::SymInt total) {
  const int64_t length = total.expect_int();
  return repeated_indices(checked_lengths("segments_from_cu_seqlens", cu_seqlens, length), length);
}

at::Tensor positions_kernel(const at::Tensor& cu_seqlens, c10::SymInt total) {
  const int64_t length = total.expect_int();
  const at::Tensor lengths = checked_lengths("positions_from_cu_seqlens", cu_seqlens, length);
  const at::Tensor segments = repeated_indices(lengths, length);
  return at::arange(length, lengths.options()).sub(cu_seqlens.to(at::kLong).index_select(0, segments));
}

at::Tensor segments_meta(const at::Tensor& cu_seqlens, c10::SymInt total) {
  check_cu_seqlens("segments_from_cu_seqlens", cu_seqlens);
  return at::empty_symint({std::move(total)}, cu_seqlens.options().dtype(at::kLong));
}

at::Tensor positions_meta(const at::Tensor& cu_seqlens, c10::SymInt total) {
  check_cu_seqlens("positions_from_cu_seqlens", cu_seqlens);
  return at::empty_symint({std::move(total)}, cu_seqlens.options().dtype(at::kLong));
}

/// The most tokens of a sequence: their positions fill 48 GiB.
constexpr int64_t kMostTokens = int64_t{1} << 31;

int64_t token_count(const Span& span) {
  if (const auto* text = std::get_if<TextSpan>(&span)) {
    TORCH_CHECK_VALUE(text->length >= 0, "multimodal_positions: expected the length of text to be at least 0, but got ",
                      text->length);
    check_numbers("multimodal_positions", "the length of text", {text->length}, kMostTokens);
    return text->length;
  }
  const auto& grid = std::get<GridSpan>(span);
  TORCH_CHECK_VALUE(grid.frames >= 1 && grid.height >= 1 && grid.width >= 1,
                    "multimodal_positions: expected every side of a grid (t, h, w) to be at least 1, but got (",
                    grid.frames, ", ", grid.height, ", ", grid.width, ")");
  check_numbers("multimodal_positions", "the tokens t * h * w of a grid", {grid.frames, grid.height, grid.width},
                kMostTokens);
  return grid.frames * grid.height * grid.width;
}

}  // namespace

at::Tensor positions_from_mask(const at::Tensor& mask) {
  static const auto op = find_op<at::Tensor(const at::Tensor&)>("posenc::positions_from_mask");
  return op.call(mask);
}

at::Tensor positions_from_cu_seqlens(const at::Tensor& cu_seqlens, c10::SymInt total) {
  static const auto op = find_op<at::Tensor(const at::Tensor&, c10::SymInt)>("posenc::positions_from_cu_seqlens");
  return op.call(cu_seqlens, std::move(total));
}

at::Tensor segments_from_cu_seqlens(const at::Tensor& cu_seqlens, c10::SymInt total) {
  static const auto op = find_op<at::Tensor(const at::Tensor&, c10::SymInt)>("posenc::segments_from_cu_seqlens");
  return op.call(cu_seqlens, std::move(total));
}

at::Tensor multimodal_positions(const std::vector<Span>& spans) {
  int64_t tokens = 0;
  for (const Span& span : spans) {
    tokens += token_count(span);
    check_numbers("multimodal_positions", "the tokens of all spans", {tokens}, kMostTokens);
  }
  at::Tensor positions = at::empty({3, tokens}, at::TensorOptions().device(at::kCPU).dtype(at::kLong));
  int64_t* time = positions.mutable_data_ptr<int64_t>();
  int64_t* row = time + tokens;
  int64_t* column = row + tokens;
  int64_t start = 0;
  for (const Span& span : spans) {
    if (const auto* text = std::get_if<TextSpan>(&span)) {
      for (int64_t i = 0; i < text->length; ++i) *time++ = *row++ = *column++ = start++;
      continue;
    }
    const auto [frames, height, width] = std::get<GridSpan>(span);
    for (int64_t t = 0; t < frames; ++t) {
      for (int64_t h = 0; h < height; ++h) {
        for (int64_t w = 0; w < width; ++w) {
          *time++ = start + t;
          *row++ = start + h;
          *column++ = start + w;
        }
      }
    }
    start += std::max({frames, height, width});
  }
  return positions;
}

POSENC_LIBRARY_FRAGMENT(m) {
  m.def("positions_from_mask(Tensor mask) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("positions_from_cu_seqlens(Tensor cu_seqlens, SymInt total) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("segments_from_cu_seqlens(Tensor cu_seqlens, SymInt total) -> Tensor", {at::Tag::pt2_compliant_tag});
}

POSENC_LIBRARY_IMPL(CompositeImplicitAutograd, m) { m.impl("positions_from_mask", &positions_from_mask_composite); }

static void register_kernels(torch::Library& m) {
  m.impl("positions_from_cu_seqlens", &positions_kernel);
  m.impl("segments_from_cu_seqlens", &segments_kernel);
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) { register_kernels(m); }

// Nested tensors come to these keys; check_dense() refuses them by name.
POSENC_LIBRARY_IMPL(NestedTensorCPU, m) { register_kernels(m); }
POSENC_LIBRARY_IMPL(AutogradNestedTensor, m) { register_kernels(m); }

POSENC_LIBRARY_IMPL(Meta, m) {
  m.impl("positions_from_cu_seqlens", &positions_meta);
  m.impl("segments_from_cu_seqlens", &segments_meta);
}

}  // namespace posenc
