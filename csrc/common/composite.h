#pragma once

/// Registration of ops that are compositions of other ops.

#include "common/registration.h"

/// POSENC_COMPOSITES(m) { m.impl("name", &function); }
///
/// Registers functions for every backend, as compositions whose derivatives are those of their parts, and for vmap,
/// which would else call composite ops of other libraries than ATen once for every sample.
#define POSENC_COMPOSITES(m) POSENC_COMPOSITES_NUMBERED(m, __COUNTER__)
#define POSENC_COMPOSITES_NUMBERED(m, number) POSENC_COMPOSITES_NAMED(m, C10_CONCATENATE(posenc_composites_, number))
#define POSENC_COMPOSITES_NAMED(m, name)                                     \
  static void name(torch::Library&);                                         \
  POSENC_LIBRARY_IMPL(CompositeImplicitAutograd, library) { name(library); } \
  POSENC_LIBRARY_IMPL(FuncTorchBatched, library) { name(library); }          \
  void name(torch::Library& m)
