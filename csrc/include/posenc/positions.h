#pragma once

/// Positions and segments of padded, packed and multimodal sequences. Lengths and positions are in tokens, integers are
/// int64, errors are ValueError for shapes and values and TypeError for dtypes.

#include <posenc/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

namespace posenc {

/// Positions counted over the tokens that a mask shows, row by row: mask (T) or (B, T), bool or integer, nonzero at
/// tokens -> the same shape. Padding, on whichever side, gets 0.
///
/// One composite op, `posenc::positions_from_mask`.
POSENC_API at::Tensor positions_from_mask(const at::Tensor& mask);

/// Positions of sequences packed one after the other: cu_seqlens (N+1) integer, from 0 up to `total`, entry i the first
/// token of sequence i -> (total), counting from 0 in each sequence. On the device of cu_seqlens.
///
/// The op `posenc::positions_from_cu_seqlens`.
POSENC_API at::Tensor positions_from_cu_seqlens(const at::Tensor& cu_seqlens, c10::SymInt total);

/// The number of the sequence that each token of a packed batch belongs to: arguments as above -> (total).
///
/// The op `posenc::segments_from_cu_seqlens`.
POSENC_API at::Tensor segments_from_cu_seqlens(const at::Tensor& cu_seqlens, c10::SymInt total);

/// `length` tokens of text.
struct TextSpan {
  int64_t length;
};

/// The patches of an image (frames 1) or a video, `frames` times `height` times `width` tokens.
struct GridSpan {
  int64_t frames;
  int64_t height;
  int64_t width;
};

using Span = std::variant<TextSpan, GridSpan>;

/// Positions on the axes time, height and width (Qwen2-VL, arXiv 2409.12191): (3, T) on the CPU, T the tokens of all
/// spans. Text counts on all axes alike; a grid starts where text would go on and counts its frames, rows and columns;
/// the next span starts one above the largest position so far.
///
///     auto positions = posenc::multimodal_positions({TextSpan{4}, GridSpan{1, 2, 3}, TextSpan{2}});
POSENC_API at::Tensor multimodal_positions(const std::vector<Span>& spans);

}  // namespace posenc
