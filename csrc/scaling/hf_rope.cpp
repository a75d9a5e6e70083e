#include <posenc/hf_rope.h>

#include "formulas.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace posenc::scaling {
namespace {

/// Every key that transformers reads for some type.
constexpr std::array kKnownKeys{
    "alpha",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mrope_interleaved",
    "mrope_section",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "short_mscale",
    "truncate",
    "type",
};

/// Keys that real configurations carry and that say nothing about the frequencies.
constexpr std::array kIgnoredKeys{
    "finetuned",             // the first YaRN checkpoints
    "interleaved",           // Qwen3-Omni, about sections, not pairs
    "llama_4_scaling_beta",  // Ministral 3 and Mistral 4, about the scale of queries
    "max_position_embeddings",
};

constexpr std::array kTypes{"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"};

/// Models whose position axes alternate over the pairs, whatever their dict says.
constexpr std::array kAlternatingAxesModels{"cohere_compass", "cosmos3_edge", "hy_v4_vl",     "qwen3_5",  "qwen3_5_moe",
                                            "qwen3_omni_moe", "qwen3_vl",     "qwen3_vl_moe", "qwen4_exp"};

/// Models that share pairs out among position axes in an order of their own, which no option here expresses.
constexpr std::array kOwnAxesModels{"ernie4_5_vl_moe", "hunyuan_vl"};

/// Without the suffix "_text" of the language part of a multimodal model. Those with multi-head latent attention read
/// pairs this way and write halves, which leaves every product of a query and a key as it is.
constexpr std::array kInterleavedModels{
    "axk1",
    "axk2",
    "bailing_hybrid",
    "blt",
    "blt_global_transformer",
    "blt_local_decoder",
    "blt_local_encoder",
    "blt_patcher",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "dots3_note",
    "ernie4_5",
    "ernie4_5_moe",
    "ernie4_5_vl_moe",
    "glm",
    "glm4",
    "glm4_moe_lite",
    "glm4v",
    "glm_moe_dsa",
    "glm_ocr",
    "gptj",
    "helium",
    "hy_v4_vl",
    "llama4",
    "longcat_flash",
    "mistral4",
    "mistral_large4",
    "moonshine",
    "moonshine_streaming",
    "moonshine_streaming_encoder",
    "openai_privacy_filter",
    "roformer",
    "youtu",
};

template <size_t N>
bool contains(const std::array<const char*, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <size_t N>
std::string listed(const std::array<const char*, N>& names) {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

/// The dict with typed access; a null value is an absent one.
class Reader {
 public:
  Reader(const RopeDict& rope, const RopeModel& model) : rope_(rope), model_(model), type_(read_type()) {
    TORCH_CHECK_VALUE(type_ != "axial", "rope config: expected a rope_type of one position axis (", listed(kTypes),
                      "), but got axial, which AxialRotary serves");
    TORCH_CHECK_VALUE(contains(kTypes, type_), "rope config: expected rope_type to be one of ", listed(kTypes),
                      ", but got ", type_);
    for (const auto& [key, value] : rope_) {
      TORCH_CHECK_VALUE(contains(kKnownKeys, key) || contains(kIgnoredKeys, key), "rope config: unknown key '", key,
                        "'; accepted are ", listed(kKnownKeys), " and, without effect, ", listed(kIgnoredKeys));
    }
  }

  const std::string& type() const { return type_; }

  bool has(const char* key) const {
    const auto found = rope_.find(key);
    return found != rope_.end() && !std::holds_alternative<std::monostate>(found->second);
  }

  std::optional<double> number(const char* key) const {
    if (!has(key)) return std::nullopt;
    const RopeValue& value = rope_.at(key);
    if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
    const auto* number = std::get_if<double>(&value);
    TORCH_CHECK_TYPE(number != nullptr, "rope config: expected '", key, "' to be a number");
    return *number;
  }

  std::optional<int64_t> integer(const char* key) const {
    const auto value = number(key);
    if (!value) return std::nullopt;
    TORCH_CHECK_VALUE(*value == std::floor(*value) && std::abs(*value) < 9e15, "rope config: expected '", key,
                      "' to be a whole number, but got ", *value);
    return static_cast<int64_t>(*value);
  }

  std::optional<bool> flag(const char* key) const {
    if (!has(key)) return std::nullopt;
    const auto* value = std::get_if<bool>(&rope_.at(key));
    TORCH_CHECK_TYPE(value != nullptr, "rope config: expected '", key, "' to be true or false");
    return *value;
  }

  std::vector<double> list(const char* key) const {
    require(key);
    const auto* value = std::get_if<std::vector<double>>(&rope_.at(key));
    TORCH_CHECK_TYPE(value != nullptr, "rope config: expected '", key, "' to be a list of numbers");
    return *value;
  }

  double required(const char* key) const {
    require(key);
    return *number(key);
  }

  void require(const char* key) const {
    TORCH_CHECK_VALUE(has(key), "rope config: rope_type ", type_, " needs the key '", key, "'");
  }

  /// L0 of llama3, yarn and longrope.
  int64_t original_length() const {
    if (model_.original_max_position_embeddings()) return *model_.original_max_position_embeddings();
    if (const auto length = integer("original_max_position_embeddings")) return *length;
    TORCH_CHECK_VALUE(model_.max_position_embeddings(), "rope config: rope_type ", type_,
                      " needs the key 'original_max_position_embeddings'");
    return *model_.max_position_embeddings();
  }

  /// max_position_embeddings, which a dict on its own may carry too.
  std::optional<int64_t> longest() const {
    return model_.max_position_embeddings() ? model_.max_position_embeddings() : integer("max_position_embeddings");
  }

  /// The dict's factor, else how far the longest length is above L0.
  std::optional<double> factor_or_ratio() const {
    if (const auto factor = number("factor")) return factor;
    if (const auto length = longest()) return static_cast<double>(*length) / static_cast<double>(original_length());
    return std::nullopt;
  }

 private:
  std::string read_type() const {
    for (const char* key : {"rope_type", "type"}) {
      if (!has(key)) continue;
      const auto* name = std::get_if<std::string>(&rope_.at(key));
      TORCH_CHECK_TYPE(name != nullptr, "rope config: expected '", key, "' to be a string");
      if (*name == "mrope") return "default";
      // The first names of LongRoPE in Phi-3's configurations.
      if (*name == "su" || (*name == "yarn" && has("short_factor"))) return "longrope";
      return *name;
    }
    return "default";
  }

  const RopeDict& rope_;
  const RopeModel& model_;
  std::string type_;
};

Scaling read_dynamic(const Reader& rope, const RopeModel& model) {
  if (rope.has("alpha")) return NTK(rope.required("alpha"));
  auto length = rope.longest();
  if (!length) length = rope.integer("original_max_position_embeddings");
  TORCH_CHECK_VALUE(length || model.original_max_position_embeddings(),
                    "rope config: rope_type dynamic needs the length that the model was trained for, "
                    "'max_position_embeddings'");
  return DynamicNTK(rope.required("factor"), length ? *length : *model.original_max_position_embeddings());
}

Scaling read_yarn(const Reader& rope) {
  const auto factor = rope.factor_or_ratio();
  if (!factor) rope.require("factor");
  Yarn yarn(*factor, rope.original_length());
  if (const double turns = rope.number("beta_fast").value_or(0.0); turns != 0.0) yarn.beta_fast(turns);
  if (const double turns = rope.number("beta_slow").value_or(0.0); turns != 0.0) yarn.beta_slow(turns);
  return yarn.attention_factor(rope.number("attention_factor"))
      .mscale(rope.number("mscale"))
      .mscale_all_dim(rope.number("mscale_all_dim"))
      .truncate(rope.flag("truncate").value_or(true));
}

Scaling read_long_rope(const Reader& rope) {
  auto short_factor = rope.list("short_factor");
  auto long_factor = rope.list("long_factor");
  LongRoPE long_rope(std::move(short_factor), std::move(long_factor), rope.original_length());
  const auto short_mscale = rope.number("short_mscale");
  TORCH_CHECK_VALUE(short_mscale == rope.number("long_mscale"),
                    "rope config: expected short_mscale and long_mscale to be equal, as one magnitude serves both "
                    "lengths: build Rotary with LongRoPE(.., attention_factor=..) of the one you need");
  auto magnitude = rope.number("attention_factor");
  if (!magnitude) magnitude = short_mscale;
  const auto factor = rope.factor_or_ratio();
  if (!factor && !magnitude) rope.require("factor");
  return long_rope.factor(factor).attention_factor(magnitude);
}

Scaling read_scaling(const Reader& rope, const RopeModel& model, double fraction) {
  const std::string& type = rope.type();
  if (type == "linear") return Linear(rope.required("factor"));
  if (type == "dynamic") return read_dynamic(rope, model);
  if (type == "yarn") return read_yarn(rope);
  if (type == "longrope") return read_long_rope(rope);
  if (type == "llama3") {
    return Llama3(rope.required("factor"), rope.original_length())
        .low_freq_factor(rope.required("low_freq_factor"))
        .high_freq_factor(rope.required("high_freq_factor"));
  }
  if (type == "proportional") return Proportional(fraction).factor(rope.number("factor").value_or(1.0));
  return {};
}

/// A model type without the suffix of the language part of a multimodal model.
std::string_view family(std::string_view model_type) {
  constexpr std::string_view suffix = "_text";
  if (model_type.ends_with(suffix)) model_type.remove_suffix(suffix.size());
  return model_type;
}

std::vector<int64_t> read_sections(const Reader& rope, int64_t rotary_dim) {
  if (!rope.has("mrope_section")) return {};
  std::vector<int64_t> sections;
  int64_t pairs = 0;
  for (const double size : rope.list("mrope_section")) {
    TORCH_CHECK_VALUE(size >= 0 && size == std::floor(size) && size <= static_cast<double>(rotary_dim),
                      "rope config: expected every mrope_section to be a whole number of pairs, but got ", size);
    sections.push_back(static_cast<int64_t>(size));
    pairs += sections.back();
  }
  TORCH_CHECK_VALUE(pairs == rotary_dim / 2, "rope config: expected mrope_section to add up to the ", rotary_dim / 2,
                    " pairs of a rotary width of ", rotary_dim, ", but got ", pairs);
  return sections;
}

}  // namespace

RopeConfig read_rope(const RopeDict& rope_dict, const RopeModel& model) {
  const int64_t head_dim = model.head_dim();
  TORCH_CHECK_VALUE(head_dim >= 1, "rope config: expected head_dim to be at least 1, but got ", head_dim);
  const Reader rope(rope_dict, model);
  auto fraction = rope.number("partial_rotary_factor");
  if (!fraction) fraction = model.partial_rotary_factor();
  TORCH_CHECK_VALUE(!fraction || (*fraction > 0 && *fraction <= 1),
                    "rope config: expected partial_rotary_factor to be above 0 and at most 1, but got ", *fraction);

  RopeConfig config;
  config.head_dim = head_dim;
  if (rope.type() == "proportional") {
    config.rotary_dim = head_dim;
  } else if (fraction) {
    config.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * *fraction);
  } else {
    config.rotary_dim = model.rotary_dim().value_or(head_dim);
  }
  TORCH_CHECK_VALUE(config.rotary_dim % 2 == 0 && config.rotary_dim >= 0 && config.rotary_dim <= head_dim,
                    "rope config: expected an even rotary width of at most head_dim ", head_dim, ", but got ",
                    config.rotary_dim);
  config.base = rope.number("rope_theta").value_or(model.rope_theta().value_or(10000.0));
  config.scaling = read_scaling(rope, model, fraction.value_or(1.0));
  config.interleaved = model.interleaved().value_or(has_interleaved_pairs(model.model_type()));
  TORCH_CHECK_VALUE(
      !rope.has("mrope_section") || !contains(kOwnAxesModels, family(model.model_type())),
      "rope config: expected mrope_section of a model that shares pairs out section by section or in turns, "
      "but model_type ",
      model.model_type(), " has an order of its own: call posenc.ops.rotary with axes in that order");
  config.mrope_section = read_sections(rope, config.rotary_dim);
  config.mrope_interleaved =
      rope.flag("mrope_interleaved").value_or(false) || contains(kAlternatingAxesModels, family(model.model_type()));
  check_arguments(config.rotary_dim, config.base, config.scaling);
  return config;
}

bool has_interleaved_pairs(const std::string& model_type) { return contains(kInterleavedModels, family(model_type)); }

}  // namespace posenc::scaling
