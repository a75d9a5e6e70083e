#pragma once

#include "model.h"

#include <string>

namespace lm {

/// A model and the context that it was trained at.
struct TrainedModel {
  LanguageModel model = nullptr;
  int64_t context = 0;
};

/// Writes the weights, the model's options and the trained context in the form of torch.save, so that Python reads it;
/// an older file is replaced in one step.
void save_weights(const LanguageModel& model, int64_t context, const std::string& path);

/// Reads what save_weights, here or in Python, has written. Throws UserError where the file is missing or no such file.
TrainedModel load_weights(const std::string& path);

}  // namespace lm
