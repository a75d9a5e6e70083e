#pragma once

/// Numbers that additive score encodings are made of.

#include <posenc/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace posenc {

/// The slopes of ALiBi (arXiv 2108.12409, section 3) for all query heads of a model, (num_heads): 2^(-8h/H) for
/// h = 1 .. H where H is a power of two; else those of the next lower power of two, followed by every other one of
/// twice that power. Not monotone, and in the order of heads: under tensor parallelism each rank takes its share of
/// this list.
///
/// Computed in float64 and rounded once, to `dtype`. On the CPU unless `device` says otherwise.
///
///     auto out = posenc::attention(q, k, v, posenc::AttentionFuncOptions().alibi_slopes(posenc::alibi_slopes(8)));
///
/// Errors: c10::ValueError unless num_heads is at least 1, c10::TypeError unless dtype is a floating type.
POSENC_API at::Tensor alibi_slopes(int64_t num_heads, at::ScalarType dtype = at::kFloat,
                                   std::optional<at::Device> device = std::nullopt);

/// The buckets of T5 (arXiv 1910.10683, section 2.1) for relative_position = key - query, in tokens: any integer type
/// and shape -> int64 of that shape, 0 .. num_buckets - 1.
///
/// With n = |relative_position|, and b = num_buckets, one bucket stands for each n < b/2, then buckets widen in
/// proportion to n up to max_distance, and the last one holds all that lies beyond. Not bidirectional (decoders), keys
/// after the query share bucket 0. Bidirectional, each direction has half of the buckets, keys after the query the
/// upper half. Buckets are found by integer comparison, so they are alike on all devices.
///
/// Errors: c10::TypeError unless relative_position is an integer type, c10::ValueError where num_buckets and
/// max_distance do not fit (see posenc::nn::T5RelativeBias).
POSENC_API at::Tensor t5_bucket(const at::Tensor& relative_position, int64_t num_buckets = 32,
                                int64_t max_distance = 128, bool bidirectional = true);

}  // namespace posenc
