#pragma once

#include "model.h"

#include <string>

namespace lm {

/// Writes the weights and the model's options in the form of torch.save, so that Python reads it; an older file is
/// replaced in one step.
void save_weights(const LanguageModel& model, const std::string& path);

/// Reads what save_weights, here or in Python, has written. Throws UserError where the file is missing or no such file.
LanguageModel load_weights(const std::string& path);

}  // namespace lm
