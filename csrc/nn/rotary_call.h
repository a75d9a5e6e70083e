#pragma once

/// What the rotary modules share: from a module's options and a call's to frequencies and op options.

#include <posenc/nn/rotary.h>

#include <string>

namespace posenc::nn {

/// inv_freq for a call on x, on x's device: `initial`, or where the scaling depends on the length, the frequencies for
/// the call's seq_len, else `seq_len`, else the tokens up to the last one that the call rotates.
at::Tensor frequencies_for_call(const char* module, const at::Tensor& initial, const scaling::Scaling& scaling,
                                int64_t width, double base, bool exact, std::optional<int64_t> seq_len,
                                const at::Tensor& x, const RotaryForwardOptions& call);

/// A parameter as the ops take it: a half-width module keeps half-width parameters, the ops start at float32.
at::Tensor at_least_float(const at::Tensor& parameter);

/// Raises unless `width` columns, named `name`, are even, not negative and at most head_dim.
void check_rotary_width(const char* module, int64_t head_dim, const char* name, int64_t width);

/// The name of an encoding's class, for messages.
std::string name_of(const RotaryEncoding& encoding);

/// Raises unless a call's q, named `name`, is (B, H, T, D) with the head width D that the module was built for.
void check_call_shape(const char* module, int64_t head_dim, const at::Tensor& q, const char* name = "q");

/// `by` for each of the keys (B, G, T, D), as positions (T).
at::Tensor shifts_of(const char* module, int64_t head_dim, const at::Tensor& key, int64_t by);

/// Raises unless k is (B, G, T, D) for a q (B, H, T, D) that was checked.
void check_same_tokens(const char* module, const at::Tensor& q, const at::Tensor& k);

/// Raises unless seq_len is absent or positive.
void check_seq_len(const char* module, std::optional<int64_t> seq_len);

}  // namespace posenc::nn
