#include "options.h"

#include "error.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>
#include <type_traits>

namespace lm {
namespace {

constexpr int64_t kMaxThreads = 1024;

/// Columns of the terminal that the text of --help has, and the one where explanations begin.
constexpr size_t kHelpWidth = 120, kHelpColumn = 24;

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

template <typename T>
std::string to_text(T value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

template <typename T>
T parse_number(const std::string& flag, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    const std::string kind = std::is_integral_v<T> ? "whole number" : "number";
    throw UsageError("argument " + flag + ": expected a " + kind + ", got '" + text + "'");
  }
  return value;
}

int64_t parse_count(const std::string& flag, const std::string& text, int64_t minimum,
                    int64_t maximum = std::numeric_limits<int64_t>::max()) {
  const auto value = parse_number<int64_t>(flag, text);
  if (value < minimum) {
    throw UsageError("argument " + flag + ": must be at least " + to_text(minimum) + ", got " + text);
  }
  if (value > maximum) {
    throw UsageError("argument " + flag + ": must be at most " + to_text(maximum) + ", got " + text);
  }
  return value;
}

double parse_positive(const std::string& flag, const std::string& text) {
  const auto value = parse_number<double>(flag, text);
  if (!(value > 0.0) || !std::isfinite(value)) {
    throw UsageError("argument " + flag + ": must be positive and finite, got " + text);
  }
  return value;
}

std::vector<std::string> parse_names(const std::string& flag, const std::string& text,
                                     const std::vector<std::string>& known) {
  std::vector<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (name.empty()) {
      continue;
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw UsageError("argument " + flag + ": unknown name '" + name + "'; known: " + join(known));
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  if (names.empty()) {
    throw UsageError("argument " + flag + ": expected names; known: " + join(known));
  }
  return names;
}

/// An explanation in --help, broken between words.
std::string wrapped(const std::string& help) {
  std::istringstream words(help);
  std::string text;
  size_t column = kHelpColumn + 2;
  for (std::string word; words >> word; column += word.size() + 1) {
    if (column + word.size() > kHelpWidth) {
      column = kHelpColumn + 2;
      text += "\n" + std::string(column, ' ');
    } else if (!text.empty()) {
      text += " ";
    }
    text += word;
  }
  return text;
}

/// A flag that takes one value.
struct Flag {
  std::string name;
  std::string value;
  std::string help;
  std::function<void(const std::string& text)> set;
};

/// Every flag, writing into `options`; `from_weights` collects those that saved weights decide.
std::vector<Flag> make_flags(Options& options, std::vector<std::string>& from_weights,
                             const std::vector<std::string>& known_encodings,
                             const std::vector<std::string>& known_scalings) {
  std::vector<Flag> flags;
  const auto add_count = [&](const std::string& name, const std::string& help, int64_t& target, int64_t minimum) {
    flags.push_back({name, "N", help + " (" + to_text(target) + ")",
                     [=, &target](const std::string& text) { target = parse_count(name, text, minimum); }});
  };
  const auto add_size = [&](const std::string& name, const std::string& help, int64_t& target, int64_t minimum) {
    add_count(name, help, target, minimum);
    flags.back().set = [&from_weights, name, set = flags.back().set](const std::string& text) {
      set(text);
      from_weights.push_back(name);
    };
  };
  const auto add_positive = [&](const std::string& name, const std::string& value, const std::string& help,
                                double& target) {
    flags.push_back({name, value, help + " (" + to_text(target) + ")",
                     [=, &target](const std::string& text) { target = parse_positive(name, text); }});
  };
  const auto add_names = [&](const std::string& name, const std::string& help, std::vector<std::string>& target,
                             const std::vector<std::string>& known) {
    flags.push_back({name, "NAMES", help + ": " + join(known) + " (" + join(target) + ")",
                     [=, &target](const std::string& text) { target = parse_names(name, text, known); }});
  };

  flags.push_back({"--data", "PATH", "a file or a folder of any text (default: the standard library of python3)",
                   [&](const std::string& text) { options.data = text; }});
  flags.push_back({"--out", "FOLDER", "weights and numbers (" + options.out + ")",
                   [&](const std::string& text) { options.out = text; }});
  flags.push_back({"--weights", "FILE", "start from saved weights; with --steps 0 only score them",
                   [&](const std::string& text) { options.weights = text; }});
  add_names("--encodings", "positional encodings to train with, one model each", options.encodings, known_encodings);
  add_names("--scalings", "context extensions to score", options.scalings, known_scalings);
  add_count("--steps", "training steps", options.training.steps, 0);
  flags.push_back({"--seed", "N", "of weights and batches (0)", [&](const std::string& text) {
                     options.training.seed = static_cast<uint64_t>(parse_count("--seed", text, 0));
                   }});
  flags.push_back({"--threads", "N", "CPU threads (as many as torch takes)", [&](const std::string& text) {
                     options.threads = static_cast<int>(parse_count("--threads", text, 1, kMaxThreads));
                   }});
  add_positive("--time-limit", "SECONDS", "end training after this time, for each encoding",
               options.training.time_limit);
  add_size("--context", "bytes in a training window", options.model.context, 8);
  add_size("--layers", "transformer blocks", options.model.layers, 1);
  add_size("--width", "of the embeddings", options.model.width, 1);
  add_size("--heads", "attention heads", options.model.heads, 1);
  add_count("--batch", "windows in a step", options.training.batch, 1);
  add_positive("--learning-rate", "X", "at its peak", options.training.learning_rate);
  add_count("--windows", "held-out windows of the longest length to score", options.windows, 1);
  return flags;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments, const std::vector<std::string>& known_encodings,
                      const std::vector<std::string>& known_scalings) {
  Options options;
  std::vector<std::string> from_weights;
  bool encodings_given = false;
  const auto flags = make_flags(options, from_weights, known_encodings, known_scalings);
  for (size_t index = 0; index < arguments.size(); ++index) {
    std::string name = arguments[index];
    if (name == "--help" || name == "-h") {
      options.help = true;
      return options;
    }
    std::optional<std::string> value;
    if (const size_t equals = name.find('='); name.starts_with("--") && equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags.end()) {
      throw UsageError("unrecognized argument: " + arguments[index] + " (--help lists the known ones)");
    }
    if (!value) {
      if (++index == arguments.size()) {
        throw UsageError("argument " + name + ": expected a value");
      }
      value = arguments[index];
    }
    flag->set(*value);
    encodings_given = encodings_given || name == "--encodings";
  }

  if (encodings_given) {
    from_weights.push_back("--encodings");
  }
  if (options.weights && !from_weights.empty()) {
    throw UsageError(from_weights.front() + " comes from the weights, leave it out with --weights");
  }
  if (!options.weights && options.training.steps < 1) {
    throw UsageError("--steps must be at least 1 without --weights, got 0");
  }
  if (options.model.width % (2 * options.model.heads) != 0) {
    throw UsageError("--width must be a multiple of twice --heads, got " + to_text(options.model.width) + " and " +
                     to_text(options.model.heads));
  }
  return options;
}

std::string help_text(const std::vector<std::string>& known_encodings, const std::vector<std::string>& known_scalings) {
  Options defaults;
  std::vector<std::string> from_weights;
  std::ostringstream text;
  text << R"(usage: train_lm [FLAG VALUE]...

Trains a small byte-level language model at a short context, one for each encoding, then reads the same text with the
same weights in longer and longer windows, with each context extension of rotary position embeddings. Ctrl-C ends
training early: the weights are kept and scored. A second Ctrl-C ends the scoring.

)";
  for (const auto& flag : make_flags(defaults, from_weights, known_encodings, known_scalings)) {
    text << "  " << std::left << std::setw(kHelpColumn) << flag.name + " " + flag.value << wrapped(flag.help) << "\n";
  }
  return text.str();
}

}  // namespace lm
