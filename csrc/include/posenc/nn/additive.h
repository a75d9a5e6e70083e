#pragma once

#include <posenc/export.h>
#include <posenc/nn/encoding.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace posenc::nn {

/// A call whose scores get a bias. Only shapes, dtype and device of query and key matter.
struct ScoreCall {
  at::Tensor query;
  at::Tensor key;
  std::optional<at::Tensor> q_positions;
  std::optional<at::Tensor> k_positions;
};

/// What is added to the scores of a call, as arguments of posenc::attention().
struct ScoreTerms {
  std::optional<at::Tensor> slopes = {};
  std::optional<at::Tensor> distance_bias = {};
  std::optional<at::Tensor> bias = {};
  std::optional<at::Tensor> grid_bias = {};
  /// Coordinates for grid_bias, where the call has none.
  std::optional<at::Tensor> q_positions = {};
  std::optional<at::Tensor> k_positions = {};
};

/// An encoding that adds a bias to each attention score. A subclass implements terms() and heads(); the other members
/// follow from them. examples/cpp/custom_encoding.cpp shows one.
///
/// All add the same for keys before and after the query at equal distance, unless their documentation says otherwise.
/// Whether a query sees later keys depends on the call (is_causal, false by default, as in posenc::attention()). The
/// query's heads must be as many as the encoding's, else c10::ValueError.
class POSENC_API AdditiveEncoding : public ScoreEncoding {
 public:
  void add_terms(OpCall& op, const AttendOptions& call) override;
  std::optional<int64_t> num_heads() const override { return heads(); }

  /// What is added, (H, q_len, k_len), for queries at the last positions of k_len (absent: q_len) keys. float32, or
  /// float64 where the parameters are. c10::ValueError for negative lengths.
  at::Tensor bias(int64_t q_len, std::optional<int64_t> k_len = std::nullopt);

 protected:
  /// What is added to the scores of a call.
  virtual ScoreTerms terms(const ScoreCall& call) = 0;
  /// H, the query heads that the encoding was made for.
  virtual int64_t heads() const = 0;
  /// A parameter, for the dtype and device of bias(); undefined where there is none.
  virtual at::Tensor parameter() const { return {}; }
};

}  // namespace posenc::nn
