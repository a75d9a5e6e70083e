#include "weights.h"

#include "error.h"

#include <ATen/core/Dict.h>
#include <torch/serialize.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace lm {
namespace {

std::vector<char> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw UserError("cannot read weights " + path);
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

LanguageModel make_model(const c10::IValue& content) {
  const auto fields = content.toGenericDict();
  const auto sizes = fields.at("options").toGenericDict();
  ModelOptions options;
  options.encoding = fields.at("encoding").toStringRef();
  options.layers = sizes.at("layers").toInt();
  options.width = sizes.at("width").toInt();
  options.heads = sizes.at("heads").toInt();
  options.context = sizes.at("context").toInt();
  LanguageModel model(options);

  const at::NoGradGuard no_grad;
  const auto weights = fields.at("weights").toGenericDict();
  // What modules hold as buffers follows from their options, and is not saved.
  const auto tensors = model->named_parameters();
  TORCH_CHECK(weights.size() == tensors.size(), "expected ", tensors.size(), " tensors, got ", weights.size());
  for (const auto& tensor : tensors) {
    const at::Tensor saved = weights.at(tensor.key()).toTensor();
    TORCH_CHECK(saved.sizes() == tensor.value().sizes(), tensor.key(), " has another shape");
    tensor.value().copy_(saved);
  }
  return model;
}

}  // namespace

void save_weights(const LanguageModel& model, const std::string& path) {
  c10::Dict<std::string, at::Tensor> weights;
  for (const auto& tensor : model->named_parameters()) {
    weights.insert(tensor.key(), tensor.value().detach());
  }
  c10::Dict<std::string, int64_t> options;
  options.insert("layers", model->options.layers);
  options.insert("width", model->options.width);
  options.insert("heads", model->options.heads);
  options.insert("context", model->options.context);
  c10::impl::GenericDict content(c10::StringType::get(), c10::AnyType::get());
  content.insert("weights", weights);
  content.insert("options", options);
  content.insert("encoding", model->options.encoding);

  const std::vector<char> bytes = torch::pickle_save(content);
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    throw UserError("cannot write " + unfinished);
  }
  std::filesystem::rename(unfinished, path);
}

LanguageModel load_weights(const std::string& path) {
  const std::vector<char> bytes = read_bytes(path);
  try {
    return make_model(torch::pickle_load(bytes));
  } catch (const UserError&) {
    throw;
  } catch (const std::exception&) {
    throw UserError(path + " holds no weights of this program");
  }
}

}  // namespace lm
