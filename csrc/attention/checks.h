#pragma once

/// Argument rules of attention, on symbolic sizes. Every backend calls these, so that messages are equal. The rules of
/// a term stand in its folder.

#include "attention/call.h"

namespace posenc::attention_ops {

/// Names of inputs in the schema of posenc::attention.
inline constexpr const char* kInputNames[] = {
#define POSENC_INPUT(slot, name) #name,
    POSENC_ATTENTION_INPUTS(POSENC_INPUT)
#undef POSENC_INPUT
};

/// All rules of a call; one without value (logits) has none for it.
void check(const Call& c);

/// Refuses tensors that are None where one was to be given.
void check_defined(const Call& c);

/// The name that messages give a call, by its terms: "attention", "relative_attention", ...
const char* op_name(const Call& c);

/// The name of an input's argument in that op.
const char* name_of(const Call& c, Input input);

// For terms.

bool equal(const c10::SymInt& a, const c10::SymInt& b);

/// The device, layout and dtype of a table or bias.
void check_table(const Call& c, Input input);

/// Raises unless a table over clipped distances is (2R+1, width) or (heads, 2R+1, width).
void check_rows_of_distances(const Call& c, Input input, const c10::SymInt& width);

/// The device and layout of an argument, which are those of query.
void check_beside_query(const Call& c, const char* name, const Tensor& x);

/// Raises unless x, the argument `name`, can be broadcast to (B, H, Tq, Tk).
void check_broadcastable_to_scores(const Call& c, const char* name, const Tensor& x);

/// Raises unless a call goes by index and is causal, and its queries are the last tokens, as `term` counts tokens.
void check_counts_tokens(const Call& c, const char* term);

}  // namespace posenc::attention_ops
