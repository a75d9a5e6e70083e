#include "data.h"

#include "error.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <tuple>
#include <vector>

namespace lm {
namespace {

namespace fs = std::filesystem;

/// Files beyond this many bytes, in hash order, are left out.
constexpr size_t kMaxBytes = size_t{64} << 20;
/// One byte in this many is held out for validation.
constexpr size_t kHeldOut = 20;
/// Folders of the standard library that hold no source text of its own.
constexpr std::array kSkippedFolders = {"__pycache__", "dist-packages", "site-packages", "test", "tests", "idle_test"};

uint64_t fnv1a(const std::string& data) {
  uint64_t value = 0xCBF29CE484222325;
  for (const unsigned char byte : data) {
    value = (value ^ byte) * 0x100000001B3;
  }
  return value;
}

fs::path python_standard_library() {
  constexpr auto command = "python3 -c 'import sysconfig; print(sysconfig.get_path(\"stdlib\"), end=\"\")' 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> output(popen(command, "r"), pclose);
  std::string path;
  std::array<char, 256> part;
  while (output && std::fgets(part.data(), part.size(), output.get())) {
    path += part.data();
  }
  if (path.empty()) {
    throw UserError("python3, whose standard library is the default text, was not found: name a text with --data");
  }
  return path;
}

bool is_skipped(const std::string& folder) {
  return folder.starts_with('.') ||
         std::find(kSkippedFolders.begin(), kSkippedFolders.end(), folder) != kSkippedFolders.end();
}

std::vector<std::string> list_files(const fs::path& path, const std::string& suffix) {
  if (!fs::exists(path)) {
    throw UserError(path.string() + " does not exist");
  }
  if (fs::is_regular_file(path)) {
    return {path.filename().string()};
  }
  if (!fs::is_directory(path)) {
    throw UserError(path.string() + " is neither a file nor a folder");
  }
  std::vector<std::string> names;
  try {
    for (auto entry = fs::recursive_directory_iterator(path); entry != fs::recursive_directory_iterator(); ++entry) {
      const std::string name = entry->path().filename().string();
      if (entry->is_directory() && is_skipped(name)) {
        entry.disable_recursion_pending();
      } else if (name.ends_with(suffix) && !name.starts_with('.') && entry->is_regular_file()) {
        names.push_back(entry->path().lexically_relative(path).generic_string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw UserError("cannot read " + error.path1().string() + ": " + error.code().message());
  }
  if (names.empty()) {
    throw UserError(path.string() + " holds no files");
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::make_tuple(fnv1a(a), a) < std::make_tuple(fnv1a(b), b);
  });
  return names;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content(std::min<size_t>(fs::file_size(path), kMaxBytes), '\0');
  if (!file || file.read(content.data(), static_cast<std::streamsize>(content.size())).bad()) {
    throw UserError("cannot read " + path.string());
  }
  content.resize(static_cast<size_t>(file.gcount()));
  return content;
}

at::Tensor to_tensor(const std::string& text) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

/// The windows of `length` bytes that begin at `starts`, as int64.
at::Tensor windows_at(const at::Tensor& text, const at::Tensor& starts, int64_t length) {
  return text.index({starts.unsqueeze(1) + at::arange(length, at::kLong)}).to(at::kLong);
}

}  // namespace

Corpus load_corpus(const std::optional<std::string>& given) {
  const fs::path path = given ? fs::path(*given) : python_standard_library();
  const std::vector<std::string> names = list_files(path, given ? "" : ".py");
  std::vector<std::string> contents;
  size_t total = 0;
  for (const auto& name : names) {
    const fs::path file = fs::is_directory(path) ? path / name : path;
    if (!contents.empty() && total + fs::file_size(file) > kMaxBytes) {
      continue;
    }
    contents.push_back(read_text(file));
    total += contents.back().size();
  }

  const size_t to_hold_out = total / kHeldOut;
  std::string train, validation;
  for (const auto& content : contents) {
    const bool fits = validation.size() + content.size() <= to_hold_out;
    (fits ? validation : train) += content;
  }
  if (validation.size() < to_hold_out / 2) {
    train.clear();
    for (const auto& content : contents) {
      train += content;
    }
    validation = train.substr(total - to_hold_out);
    train.resize(total - to_hold_out);
  }
  const auto files = static_cast<int64_t>(contents.size());
  return {path, to_tensor(train), to_tensor(validation), files, static_cast<int64_t>(names.size()) - files};
}

void check_size(const Corpus& corpus, int64_t context, int64_t longest) {
  if (corpus.train.numel() <= context || corpus.validation.numel() <= longest) {
    const int64_t total = corpus.train.numel() + corpus.validation.numel();
    const int64_t needed = static_cast<int64_t>(kHeldOut) * (longest + 1);
    throw UserError(corpus.path.string() + " is too small: " + std::to_string(total) + " bytes, and about " +
                    std::to_string(needed) + " are needed to hold out a window of " + std::to_string(longest) +
                    " bytes");
  }
}

std::pair<at::Tensor, at::Tensor> training_batch(const at::Tensor& text, int64_t batch, int64_t context,
                                                 at::Generator generator) {
  const at::Tensor starts = at::randint(0, text.numel() - context, {batch}, std::move(generator), at::kLong);
  const at::Tensor windows = windows_at(text, starts, context + 1);
  return {windows.narrow(1, 0, context), windows.narrow(1, 1, context)};
}

at::Tensor validation_segments(const at::Tensor& text, int64_t count, int64_t length) {
  const int64_t last = text.numel() - length - 1;
  count = std::min(count, last / length + 1);
  const at::Tensor starts = at::arange(count, at::kLong) * last;
  return windows_at(text, starts.floor_divide(std::max<int64_t>(count - 1, 1)), length + 1);
}

}  // namespace lm
