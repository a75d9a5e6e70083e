#include "attention/terms/piecewise/term.h"

#include "attention/checks.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

void Piecewise::check(const Call& c) {
  TORCH_CHECK_VALUE(c.has(kFarQuery) && c.has(kFarKey), op_name(c),
                    ": expected q_far and k_far where one of them or threshold is given");
  TORCH_CHECK_VALUE(!c.has(kPosEmb), op_name(c),
                    ": expected no q_far and k_far with pos_emb: gates have one query and one key, so use either");
  const Tensor &query = c.query(), &far = c[kFarQuery];
  TORCH_CHECK_VALUE(equal(far.sym_size(1), query.sym_size(1)) && equal(far.sym_size(2), query.sym_size(2)) &&
                        equal(far.sym_size(3), query.sym_size(3)),
                    op_name(c), ": expected q_far to have the shape of q_near, ", query.sym_sizes(), ", but got ",
                    far.sym_sizes());
}

namespace {

/// True where q_position - k_position < threshold.
Tensor is_near(const Operands& o, const Block& block) {
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
  return *block.distance > -std::max(o.call.threshold, -kLongest);
}

}  // namespace

void Piecewise::replace_product(const Operands& o, const Block& block, Tensor& product) {
  product = at::where(is_near(o, block), product, o.scores(o.rows_of(kFarQuery, block.rows), kFarKey));
}

void Piecewise::add_gradients(const Operands& o, const Block& block, const Tensor& /*grad*/, ProductGradient& product,
                              GradientSums& sums) {
  const Tensor near = is_near(o, block), far = near.logical_not();
  const ProductGradient of_far{at::where(far, product.gradient, 0.0), product.visible.logical_and(far)};
  add_product_gradients(o, o.rows_of(kFarQuery, block.rows), kFarQuery, kFarKey, of_far, sums);
  product = {at::where(near, product.gradient, 0.0), product.visible.logical_and(near)};
}

}  // namespace posenc::attention_ops
