#pragma once

/// Argument rules of the attention ops, on symbolic sizes. Every backend calls these, so that messages are equal.

#include "attention/call.h"

namespace posenc::attention_ops {

/// All rules of a call; one without value (logits) has none for it.
void check(const Call& c);

/// Names of a slot's argument in the op's schema.
const char* name_of(const Call& c, Slot slot);

}  // namespace posenc::attention_ops
