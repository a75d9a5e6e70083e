#pragma once

/// The mask of dropout as a function of (seed, batch row and head, query, key), so that the backward pass, and every
/// way of cutting the scores into blocks, sees the mask of the forward pass without storing it.
///
///     row(bh, i)  = mix(mix(mix(low ^ bh) + high) ^ i)      low, high: the halves of the seed
///     kept(row, j) = mix(row ^ j * 0x9e3779b1) >= p 2^32
///
/// in unsigned 32-bit arithmetic, with a multiply-xorshift mixer of two rounds.

#include <cstdint>

namespace posenc::attention_ops::dropout {

inline constexpr int64_t kFirst = 0x7feb352d, kSecond = 0x846ca68b, kStep = 0x9e3779b1, kMask = 0xffffffff;

/// Weights whose number is at least this are kept.
constexpr int64_t threshold(double p) { return static_cast<int64_t>(p * 4294967296.0 + 0.5); }

}  // namespace posenc::attention_ops::dropout
