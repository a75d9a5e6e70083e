#pragma once

/// All terms.

#include "attention/terms/bias/term.h"
#include "attention/terms/cope/term.h"
#include "attention/terms/decay/term.h"
#include "attention/terms/distance/term.h"
#include "attention/terms/fire/term.h"
#include "attention/terms/grid/term.h"
#include "attention/terms/mask/term.h"
#include "attention/terms/order.h"
#include "attention/terms/piecewise/term.h"
#include "attention/terms/relative/term.h"
#include "attention/terms/relative_keys/term.h"
#include "attention/terms/sinks/term.h"
#include "attention/terms/softcap/term.h"

#include <tuple>

namespace posenc::attention_ops {

/// Calls body(term) for each term that the call has.
template <typename Body>
void for_each_used_term(const Call& c, const Body& body) {
  const auto visit = [&](auto... term) { ((term.used(c) ? body(term) : void()), ...); };
  std::apply(visit, std::tuple<POSENC_ATTENTION_TERMS()>());
}

}  // namespace posenc::attention_ops
