#include "encodings.h"

#include "error.h"

#include <posenc/nn.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>

namespace lm {
namespace {

using namespace posenc::nn;

/// Bytes in a row, where an encoding is told rows and columns.
constexpr int64_t kLine = 16;

int64_t head_dim(const ModelOptions& o) { return o.width / o.heads; }

/// Positions (2, length) of a text that is broken into lines of kLine bytes.
at::Tensor rows_and_columns(int64_t length) {
  const at::Tensor places = at::arange(length, at::kLong);
  return at::stack({places.floor_divide(kLine), places.remainder(kLine)});
}

/// Pairs for time, height and width, shared out as in Qwen2-VL: 16, 24 and 24 of 64.
std::vector<int64_t> sections(const ModelOptions& o) {
  const int64_t side = head_dim(o) * 3 / 16;
  return {head_dim(o) / 2 - 2 * side, side, side};
}

std::shared_ptr<AttendImpl> with_rotary(const ModulePointer& rotary) { return std::make_shared<AttendImpl>(rotary); }

std::shared_ptr<AttendImpl> with_score(const ModulePointer& score) {
  return std::make_shared<AttendImpl>(ModulePointer(), score);
}

std::shared_ptr<AttendImpl> plain(const ModelOptions&) { return std::make_shared<AttendImpl>(); }

std::vector<Encoding> make_encodings() {
  using O = ModelOptions;
  const auto rotary = [](const O& o) { return with_rotary(Rotary(head_dim(o)).ptr()); };
  const auto xpos = [](const O& o) { return with_rotary(XPos(head_dim(o)).ptr()); };
  const auto axial = [](const O& o) {
    return std::make_shared<AttendImpl>(AxialRotary(head_dim(o)).ptr(), ModulePointer(), rows_and_columns);
  };
  const auto multimodal = [](const O& o) { return with_rotary(MultimodalRotary(head_dim(o), sections(o)).ptr()); };
  const auto sinusoidal = [](const O& o) -> ModulePointer { return Sinusoidal(o.width).ptr(); };
  const auto learned = [](const O& o) -> ModulePointer { return LearnedAbsolute(o.context, o.width).ptr(); };
  const auto cape = [](const O& o) -> ModulePointer { return CAPE(o.width).ptr(); };
  const auto alibi = [](const O& o) { return with_score(ALiBi(o.heads).ptr()); };
  const auto t5 = [](const O& o) {
    return with_score(T5RelativeBias(T5RelativeBiasOptions(o.heads).scale(std::nullopt)).ptr());
  };
  const auto kerple = [](const O& o) { return with_score(Kerple(o.heads).ptr()); };
  const auto kerple_power = [](const O& o) {
    return with_score(Kerple(KerpleOptions(o.heads).kind(KerpleKind::kPower)).ptr());
  };
  const auto sandwich = [](const O& o) { return with_score(Sandwich(o.heads).ptr()); };
  const auto fire = [](const O& o) { return with_score(FIRE(o.heads).ptr()); };
  const auto shaw = [](const O& o) { return with_score(ShawRelative(head_dim(o), 16).ptr()); };
  const auto deberta = [](const O& o) {
    return with_score(
        DisentangledRelative(DisentangledRelativeOptions(head_dim(o), o.heads, o.context).buckets(16)).ptr());
  };
  const auto transformer_xl = [](const O& o) { return with_score(TransformerXL(head_dim(o), o.heads).ptr()); };
  const auto rerope = [](const O& o) {
    return with_score(ReRoPE(ReRoPEOptions(head_dim(o)).window(o.context / 2)).ptr());
  };
  const auto rerope_leaky = [](const O& o) {
    return with_score(ReRoPE(ReRoPEOptions(head_dim(o)).window(o.context / 2).leak(16.0)).ptr());
  };
  const auto self_extend = [](const O& o) {
    return with_score(SelfExtend(SelfExtendOptions(head_dim(o)).group(16).window(o.context / 2)).ptr());
  };
  const auto cope = [](const O& o) { return with_score(CoPE(head_dim(o), 64).ptr()); };
  const auto rotary_cope = [](const O& o) {
    return std::make_shared<AttendImpl>(Rotary(head_dim(o)).ptr(), CoPE(head_dim(o), 64).ptr());
  };
  const auto fox = [](const O& o) { return with_score(ForgettingBias(o.width, o.heads).ptr()); };
  return {
      {.name = "rotary", .title = "RoPE", .attention = rotary, .rescalable = true},
      {.name = "nope", .title = "NoPE", .attention = plain},
      {.name = "xpos", .title = "xPos", .attention = xpos},
      {.name = "axial", .title = "axial RoPE", .attention = axial},
      {.name = "multimodal", .title = "M-RoPE", .attention = multimodal},
      {.name = "sinusoidal", .title = "sinusoidal", .attention = plain, .embedding = sinusoidal},
      {.name = "learned", .title = "learned", .attention = plain, .embedding = learned, .bounded = true},
      {.name = "cape", .title = "CAPE", .attention = plain, .embedding = cape},
      {.name = "alibi", .title = "ALiBi", .attention = alibi},
      {.name = "t5", .title = "T5", .attention = t5},
      {.name = "kerple", .title = "KERPLE", .attention = kerple},
      {.name = "kerple-power", .title = "KERPLE power", .attention = kerple_power},
      {.name = "sandwich", .title = "Sandwich", .attention = sandwich},
      {.name = "fire", .title = "FIRE", .attention = fire},
      {.name = "shaw", .title = "Shaw", .attention = shaw},
      {.name = "deberta", .title = "DeBERTa", .attention = deberta},
      {.name = "transformer-xl", .title = "Transformer-XL", .attention = transformer_xl},
      {.name = "rerope", .title = "ReRoPE", .attention = rerope},
      {.name = "rerope-leaky", .title = "leaky ReRoPE", .attention = rerope_leaky},
      {.name = "self-extend", .title = "Self-Extend", .attention = self_extend},
      {.name = "cope", .title = "CoPE", .attention = cope},
      {.name = "rotary-cope", .title = "RoPE, CoPE", .attention = rotary_cope},
      {.name = "fox", .title = "FoX", .attention = fox},
  };
}

}  // namespace

AttendImpl::AttendImpl(ModulePointer rotary, ModulePointer score, std::function<at::Tensor(int64_t)> positions)
    : rotary_(std::move(rotary)), score_(std::move(score)), positions_(std::move(positions)) {
  if (rotary_) {
    register_module("rotary", rotary_);
  }
  if (score_) {
    register_module("score", score_);
  }
}

void AttendImpl::rescale(const posenc::scaling::Scaling& scaling) {
  if (const auto* rotary = dynamic_cast<RotaryImpl*>(rotary_.get())) {
    rotary_ = replace_module("rotary", Rotary(RotaryOptions(rotary->options.head_dim()).scaling(scaling)).ptr());
  }
}

at::Tensor AttendImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& x) {
  at::Tensor turned_q = q, turned_k = k;
  if (rotary_) {
    RotaryForwardOptions call;
    if (positions_) {
      call.positions(positions_(q.size(2)));
    }
    std::tie(turned_q, turned_k) = dynamic_cast<RotaryEncoding&>(*rotary_).rotate(q, k, call);
  }
  if (!score_) {
    return at::scaled_dot_product_attention(turned_q, turned_k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                            /*is_causal=*/true);
  }
  auto& score = dynamic_cast<ScoreEncoding&>(*score_);
  AttendOptions call;
  if (!score.always_causal()) {
    call.is_causal(true);
  }
  for (const auto& [name, state] : score.token_state(x)) {
    call.set_state(name, state);
  }
  return score.attend(turned_q, turned_k, v, call);
}

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> all = make_encodings();
  return all;
}

std::vector<std::string> encoding_names() {
  std::vector<std::string> names;
  for (const auto& encoding : encodings()) {
    names.push_back(encoding.name);
  }
  return names;
}

const Encoding& find_encoding(const std::string& name) {
  for (const auto& encoding : encodings()) {
    if (encoding.name == name) {
      return encoding;
    }
  }
  throw UserError("the encoding '" + name + "' is not known here");
}

void rescale(torch::nn::Module& model, const posenc::scaling::Scaling& scaling) {
  for (const auto& module : model.modules()) {
    if (auto* attend = module->as<AttendImpl>()) {
      attend->rescale(scaling);
    }
  }
}

}  // namespace lm
