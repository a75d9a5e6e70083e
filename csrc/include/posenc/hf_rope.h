#pragma once

/// Reading the rotary settings of Hugging Face transformers configurations (config.json).

#include <posenc/export.h>
#include <posenc/scaling.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace posenc::scaling {

/// A value of a rope dict. Whole numbers may come as either kind of number.
using RopeValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>>;
/// `rope_parameters`, or `rope_scaling` of older files, of one layer type.
using RopeDict = std::map<std::string, RopeValue>;

/// What a configuration says outside its rope dict, under the names it has there.
///
///     auto rope = read_rope({{"rope_type", "linear"}, {"factor", 4.0}}, RopeModel(128).rope_theta(1e6));
struct RopeModel {
  explicit RopeModel(int64_t head_dim) : head_dim_(head_dim) {}
  /// Width of a head; in multi-head latent attention of the part that is rotated (qk_rope_head_dim).
  TORCH_ARG(int64_t, head_dim);
  TORCH_ARG(std::optional<int64_t>, max_position_embeddings) = std::nullopt;
  /// Goes before the dict's own.
  TORCH_ARG(std::optional<int64_t>, original_max_position_embeddings) = std::nullopt;
  /// Base, where the dict has none; absent: 10000.
  TORCH_ARG(std::optional<double>, rope_theta) = std::nullopt;
  /// Part of the head that is rotated, where the dict has none; absent: 1.
  TORCH_ARG(std::optional<double>, partial_rotary_factor) = std::nullopt;
  /// The same as a width, where neither gives a part (GPT-J).
  TORCH_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
  /// Decides on the pair layout.
  TORCH_ARG(std::string, model_type) = "";
  /// Pair layout; absent: as model_type has it.
  TORCH_ARG(std::optional<bool>, interleaved) = std::nullopt;
};

/// A rotary embedding as a configuration describes it.
struct RopeConfig {
  int64_t head_dim;
  /// int(head_dim * partial_rotary_factor); head_dim where the type is "proportional".
  int64_t rotary_dim;
  double base;
  Scaling scaling;
  /// Pairs are (2k, 2k+1).
  bool interleaved;
  /// Pairs per position axis (multimodal rotary embedding); empty: one axis.
  std::vector<int64_t> mrope_section;
  /// The axes alternate over the pairs (the dict says so, or as in Qwen3-VL the model type) instead of taking one chunk
  /// each.
  bool mrope_interleaved;
};

/// Reads a rope dict as transformers does: `type` stands for an absent `rope_type`, which is "default" (also "mrope"),
/// "linear", "dynamic", "yarn", "longrope" (also "su"), "llama3" or "proportional"; a null value counts as absent, and
/// so does 0 for beta_fast and beta_slow. The original length is the model's original_max_position_embeddings, else the
/// dict's, else max_position_embeddings; for "dynamic" it is max_position_embeddings. An absent factor of "yarn" and
/// "longrope" is max_position_embeddings / original length. "dynamic" with `alpha` is NTK(alpha) (Hunyuan).
///
/// Errors: ValueError for an unknown type or key, which lists the accepted ones, a missing key and a value out of
/// range; TypeError for a value of another kind.
POSENC_API RopeConfig read_rope(const RopeDict& rope, const RopeModel& model);

/// Whether transformers' models of this `model_type` read pairs as (2k, 2k+1).
POSENC_API bool has_interleaved_pairs(const std::string& model_type);

}  // namespace posenc::scaling
