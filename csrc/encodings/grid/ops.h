#pragma once

/// The ops that the score encodings on two axes call, as calls through the dispatcher. The modules of posenc::nn are
/// their public form; the ops exist so that a compiled graph can hold them and C++ and Python share one formula.

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>

namespace posenc::grid_ops {

using at::Tensor;

/// Coordinates (2, Tq) and (2, Tk) of the queries and keys of a call of `module`: keys are the tokens of a grid of
/// `size` (h, w), row by row, and queries the last of them. class_token: a token that is in no row comes first, so far
/// away that all distances to it are clipped. Raises unless there are as many keys.
std::tuple<Tensor, Tensor> grid_positions(const Tensor& query, const Tensor& key, at::IntArrayRef size,
                                          bool class_token, const std::string& module);

/// grid_bias of posenc::attention() from Swin's rows, ((2h-1)(2w-1), H), row (dy + h - 1)(2w - 1) + dx + w - 1 for
/// d = query - key: (H, 2h-1, 2w-1). class_token: three rows follow, for the pairs class token to other, other to class
/// token, and class token to itself (BEiT), and the table gets an entry more on each side, which only these meet.
/// float32 (float64 with a float64 query).
Tensor grid_table(const Tensor& rows, const Tensor& query, at::IntArrayRef window, bool class_token);

/// Such rows from the MLP of Swin v2 (arXiv 2111.09883, eq. 3 and 4), Linear(2, hidden), ReLU, Linear(hidden, H)
/// without bias: 16 sigmoid(mlp(x)), x = sign(d) log2(1 + 8 |d| / (window - 1)) / 3 for each axis. float32 (float64
/// with a float64 query).
Tensor continuous_grid_rows(const Tensor& weight_in, const Tensor& bias_in, const Tensor& weight_out,
                            const Tensor& query, at::IntArrayRef window);

}  // namespace posenc::grid_ops
