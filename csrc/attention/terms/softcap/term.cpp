#include "attention/terms/softcap/term.h"

#include "attention/checks.h"
#include "attention/terms/softcap/head.h"

#include <cmath>

namespace posenc::attention_ops {

using namespace reference;

void Softcap::check(const Call& c) {
  TORCH_CHECK_VALUE(c.softcap_on == "content" || c.softcap_on == "sum", op_name(c),
                    ": expected softcap_on to be 'content' or 'sum', but got '", c.softcap_on, "'");
  TORCH_CHECK_VALUE(c.softcap, op_name(c), ": expected softcap with softcap_on='", c.softcap_on, "', but got None");
  TORCH_CHECK_VALUE(std::isfinite(*c.softcap) && *c.softcap > 0.0, op_name(c),
                    ": expected softcap to be positive and finite, but got ", *c.softcap);
}

namespace {

bool on_sum(const Operands& o) { return o.call.softcap_on == "sum"; }

Tensor capped(const Operands& o, const Tensor& x) {
  const double cap = bounded_cap(*o.call.softcap);
  return (x / cap).tanh() * cap;
}

/// The gradient of a number from that of the number capped; 0 stays 0.
Tensor uncapped(const Operands& o, const Tensor& of_capped, const Tensor& grad) {
  const Tensor x = at::where(grad == 0, 0.0, of_capped / bounded_cap(*o.call.softcap));
  return grad * (1 - x * x);
}

}  // namespace

void Softcap::cap_product(const Operands& o, Tensor& product) {
  if (!on_sum(o)) {
    product = capped(o, product);
  }
}

void Softcap::cap_scores(const Operands& o, Tensor& scores) {
  if (on_sum(o)) {
    scores = capped(o, scores);
  }
}

void Softcap::uncap_scores(const Operands& o, const Tensor& scores, Tensor& grad) {
  if (on_sum(o)) {
    grad = uncapped(o, scores, grad);
  }
}

void Softcap::uncap_product(const Operands& o, const Tensor& product, Tensor& grad) {
  if (!on_sum(o)) {
    grad = uncapped(o, product, grad);
  }
}

}  // namespace posenc::attention_ops
