#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace lm {

/// Training and held-out text, each a one-dimensional uint8 tensor.
struct Corpus {
  std::filesystem::path path;
  at::Tensor train;
  at::Tensor validation;
  int64_t files = 0;
  int64_t files_left_out = 0;
};

/// Reads a file, or all files below a folder; without a path the standard library of the python3 found on the PATH.
///
/// The split is by file and depends on names and sizes alone: files are ordered by the FNV-1a hash of their relative
/// name, and those that fit into a twentieth of all bytes are held out. Where no file fits (a single one, or all are
/// large) the last twentieth of the text is held out instead. Throws UserError.
Corpus load_corpus(const std::optional<std::string>& path);

/// Throws UserError where no training window of `context` or no validation window of `longest` bytes fits.
void check_size(const Corpus& corpus, int64_t context, int64_t longest);

/// Random windows and the bytes that follow each position, both (batch, context) int64.
std::pair<at::Tensor, at::Tensor> training_batch(const at::Tensor& text, int64_t batch, int64_t context,
                                                 at::Generator generator);

/// `count` segments of length + 1 bytes (fewer where the text is short), spread evenly over it, without overlap:
/// (count, length + 1) int64. Cutting a segment into shorter windows keeps the predicted bytes the same, so losses at
/// different lengths can be compared.
at::Tensor validation_segments(const at::Tensor& text, int64_t count, int64_t length);

}  // namespace lm
