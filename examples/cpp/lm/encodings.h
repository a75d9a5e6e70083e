#pragma once

#include "options.h"

#include <posenc/nn/encoding.h>
#include <posenc/scaling.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lm {

using ModulePointer = std::shared_ptr<torch::nn::Module>;

/// Causal attention of one layer: a rotary encoding turns queries and keys, a score encoding attends. Without a score
/// encoding torch attends; with neither, the causal mask alone tells order (NoPE).
class AttendImpl : public torch::nn::Module {
 public:
  /// Empty modules where there is none; positions: length -> positions for the rotary encoding, where it needs any.
  explicit AttendImpl(ModulePointer rotary = {}, ModulePointer score = {},
                      std::function<at::Tensor(int64_t length)> positions = {});

  /// Uses another context extension of RoPE, where there is one, from now on; no weight depends on it.
  void rescale(const posenc::scaling::Scaling& scaling);
  /// q, k, v and the result are (B, H, T, D), x (B, T, width) is the input of the layer.
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& x);

 private:
  ModulePointer rotary_, score_;
  std::function<at::Tensor(int64_t length)> positions_;
};

/// How an encoding enters the model.
struct Encoding {
  std::string name;
  /// Name in tables.
  std::string title;
  /// Makes the attention of a layer.
  std::function<std::shared_ptr<AttendImpl>(const ModelOptions& options)> attention;
  /// Makes the absolute encoding of token embeddings, where there is one.
  std::function<ModulePointer(const ModelOptions& options)> embedding = {};
  /// The scalings apply.
  bool rescalable = false;
  /// Not defined beyond the trained length.
  bool bounded = false;
};

/// The encodings that a model can be trained with. Beyond half the trained length ReRoPE's distances stand still, and
/// leaky ReRoPE's and Self-Extend's grow a sixteenth as fast, in training too.
const std::vector<Encoding>& encodings();
std::vector<std::string> encoding_names();
/// Throws UserError for an unknown name.
const Encoding& find_encoding(const std::string& name);

/// Gives every attention of the model another context extension.
void rescale(torch::nn::Module& model, const posenc::scaling::Scaling& scaling);

}  // namespace lm
