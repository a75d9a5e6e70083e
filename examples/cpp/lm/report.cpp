#include "report.h"

#include "error.h"

#include <posenc/version.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>

namespace lm {
namespace {

using Clock = std::chrono::steady_clock;

/// Width of a length's column in the table.
constexpr int kColumn = 13;

std::string minutes(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  std::ostringstream text;
  text << whole / 60 << ":" << std::setw(2) << std::setfill('0') << whole % 60;
  return text.str();
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << '"';
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (c < 0x20) {
      out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << static_cast<int>(c) << std::dec;
    } else {
      out << c;
    }
  }
  out << '"';
  return out.str();
}

/// `items` through `write`, separated by commas.
template <typename Items, typename Write>
void write_list(std::ostream& out, const Items& items, const Write& write) {
  const char* separator = "";
  for (const auto& item : items) {
    out << separator;
    write(item);
    separator = ", ";
  }
}

}  // namespace

Progress::Progress(std::string title, int64_t total)
    : title_(std::move(title)), total_(total), terminal_(isatty(STDOUT_FILENO) == 1), begin_(Clock::now()) {}

Progress::~Progress() {
  if (terminal_) {
    std::cout << std::endl;
  }
}

void Progress::advance(int64_t step, const std::string& note) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const double left = elapsed * static_cast<double>(total_ - step) / static_cast<double>(step);
  if (!terminal_) {
    if (step == 1 || step % std::max<int64_t>(1, total_ / 10) == 0 || step == total_) {
      std::cout << title_ << " " << step << "/" << total_ << "  " << note << "  " << minutes(left) << " left"
                << std::endl;
    }
    return;
  }
  if (step < total_ && now - drawn_ < std::chrono::milliseconds(100)) {
    return;
  }
  drawn_ = now;
  constexpr int64_t kWidth = 30;
  const int64_t filled = kWidth * step / total_;
  std::cout << "\r\033[K" << title_ << " [" << std::string(filled, '#') << std::string(kWidth - filled, ' ') << "] "
            << step << "/" << total_ << "  " << note << "  " << minutes(elapsed) << ", " << minutes(left) << " left"
            << std::flush;
}

void print_table(const std::vector<Score>& scores, int64_t trained, const std::vector<int64_t>& lengths,
                 const std::map<std::string, std::string>& titles) {
  std::vector<std::pair<std::string, std::string>> rows;
  std::map<int64_t, double> best;
  for (const auto& score : scores) {
    const std::pair row(score.encoding, score.scaling);
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) {
      rows.push_back(row);
    }
    if (score.bits_per_byte) {
      const auto [entry, is_new] = best.emplace(score.length, *score.bits_per_byte);
      entry->second = std::min(entry->second, *score.bits_per_byte);
    }
  }
  std::ostringstream table;
  table << "\nBits per byte by window length, lower is better; the same weights, trained on windows of " << trained
        << "\n\n"
        << std::left << std::setw(14) << "encoding" << std::setw(14) << "scaling" << std::right;
  for (const int64_t length : lengths) {
    table << std::setw(kColumn) << length;
  }
  table << "\n" << std::string(28 + kColumn * lengths.size(), '-') << "\n" << std::fixed << std::setprecision(3);
  for (const auto& [encoding, scaling] : rows) {
    table << std::left << std::setw(14) << titles.at(encoding) << std::setw(14) << scaling << std::right;
    for (const int64_t length : lengths) {
      const auto score = std::find_if(scores.begin(), scores.end(), [&](const Score& s) {
        return s.encoding == encoding && s.scaling == scaling && s.length == length;
      });
      if (score == scores.end()) {
        table << std::setw(kColumn - 1) << "-" << " ";
      } else if (!score->bits_per_byte) {
        table << std::setw(kColumn - 1) << "not defined" << " ";
      } else {
        table << std::setw(kColumn - 1) << *score->bits_per_byte << (*score->bits_per_byte == best[length] ? "*" : " ");
      }
    }
    table << "\n";
  }
  std::cout << table.str() << std::endl;
}

void write_json(const std::string& path, const Run& run) {
  std::ostringstream json;
  json << std::setprecision(std::numeric_limits<double>::max_digits10) << std::boolalpha;
  json << "{\n  \"program\": \"c++\",\n  \"posenc\": " << quoted(posenc::version())
       << ",\n  \"torch\": " << quoted(posenc::torch_version()) << ",\n  \"data\": {\"path\": " << quoted(run.data)
       << ", \"files\": " << run.files << ", \"train_bytes\": " << run.train_bytes
       << ", \"validation_bytes\": " << run.validation_bytes << ", \"scored_bytes\": " << run.scored_bytes
       << "},\n  \"model\": {\"layers\": " << run.model.layers << ", \"width\": " << run.model.width
       << ", \"heads\": " << run.model.heads << ", \"context\": " << run.model.context << "},\n  \"seed\": " << run.seed
       << ",\n  \"threads\": " << run.threads << ",\n  \"seconds\": " << run.seconds
       << ",\n  \"interrupted\": " << run.interrupted << ",\n  \"training\": {";
  write_list(json, run.training, [&](const auto& entry) {
    const auto& [encoding, result] = entry;
    json << "\n    " << quoted(encoding) << ": {\"steps\": " << result.steps << ", \"seconds\": " << result.seconds
         << ", \"stopped\": " << quoted(result.stopped) << ", \"curve\": [";
    write_list(json, result.curve, [&](const auto& point) {
      json << "{\"step\": " << point.first << ", \"bits_per_byte\": " << point.second << "}";
    });
    json << "]}";
  });
  json << "},\n  \"position_bucket\": " << kPositionBucket << ",\n  \"scores\": [";
  write_list(json, run.scores, [&](const Score& score) {
    json << "\n    {\"encoding\": " << quoted(score.encoding) << ", \"scaling\": " << quoted(score.scaling)
         << ", \"length\": " << score.length << ", \"bits_per_byte\": ";
    if (score.bits_per_byte) {
      json << *score.bits_per_byte;
    } else {
      json << "null";
    }
    json << ", \"by_position\": [";
    write_list(json, score.by_position, [&](double bits) { json << bits; });
    json << "]}";
  });
  json << "\n  ]\n}\n";

  std::ofstream file(path);
  file << json.str();
  file.close();
  if (!file) {
    throw UserError("cannot write " + path);
  }
}

}  // namespace lm
