#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Positions on two axes, d = key - query along each: a table [dy, dx] for each head (Swin, arXiv 2103.14030, eq. 4;
/// BEiT, LeViT), and query . (rel_y[dy] + rel_x[dx]) (SAM, arXiv 2304.02643; ViTDet, arXiv 2203.16527). Tables over
/// clipped distances.
struct Grid : Term {
  static const char* op(const Call& c) {
    return c.has(kGridRelY) || c.has(kGridRelX) || c.grid_rel_scale ? "relative_attention" : nullptr;
  }
  static bool used(const Call& c) { return c.on_grid() || c.grid_rel_scale; }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
