#pragma once

/// All terms, in the order in which they act on scores.

#include "attention/terms/bias/term.h"
#include "attention/terms/cope/term.h"
#include "attention/terms/decay/term.h"
#include "attention/terms/distance/term.h"
#include "attention/terms/fire/term.h"
#include "attention/terms/piecewise/term.h"
#include "attention/terms/relative/term.h"

/// Cope is last: it counts the keys that no other term hides, and its gates' gradients join those of the product.
#define POSENC_ATTENTION_TERMS(TERM) \
  TERM(Piecewise) TERM(Distance) TERM(Decay) TERM(Relative) TERM(Fire) TERM(Bias) TERM(Cope)

namespace posenc::attention_ops {

/// Calls body(term) for each term that the call has.
template <typename Body>
void for_each_used_term(const Call& c, const Body& body) {
#define POSENC_TERM(Name) \
  if (Name::used(c)) {    \
    body(Name{});         \
  }
  POSENC_ATTENTION_TERMS(POSENC_TERM)
#undef POSENC_TERM
}

}  // namespace posenc::attention_ops
