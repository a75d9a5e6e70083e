#pragma once

#include <posenc/nn/additive.h>

namespace posenc::nn {

/// The kernels of Kerple.
enum class KerpleKind {
  /// -r1 ln(1 + r2 n).
  kLog,
  /// -r1 n^r2.
  kPower,
};

/// Their names in Python and in text.
constexpr std::array<const char*, 2> value_names(KerpleKind) { return {"log", "power"}; }

/// Options of Kerple.
struct KerpleOptions {
  /*implicit*/ KerpleOptions(int64_t num_heads) : num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("num_heads", self.num_heads(), at_least(1));
    visit("kind", self.kind());
  }

  TORCH_ARG(int64_t, num_heads);
  TORCH_ARG(KerpleKind, kind) = KerpleKind::kLog;
};

/// KERPLE (arXiv 2205.09921): adds -r1 ln(1 + r2 n) or -r1 n^r2 for the distance n = |i - j|, with r1 and
/// r2 learned for each head. Power with r2 = 1 is ALiBi.
///
/// Both are clamped to at least 0.01 where they are used, and r2 to at most 2 for power. Outside of that their
/// gradients pass as if they were not clamped, so that training can bring them back. (A plain clamp has no gradient
/// there: such a parameter would stay for ever.)
///
/// Given positions are read, to see how long the table must be: as the largest distance of a query to a key in its row,
/// masked keys included. Beyond 2^24 tokens that is a c10::ValueError.
class POSENC_API KerpleImpl : public torch::nn::Cloneable<KerpleImpl>, public AdditiveEncoding {
 public:
  explicit KerpleImpl(int64_t num_heads) : KerpleImpl(KerpleOptions(num_heads)) {}
  explicit KerpleImpl(KerpleOptions options);

  void reset() override;
  /// Draws r1 from U(0, 2) and r2 from U(0, 1).
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  KerpleOptions options;
  /// The parameters (num_heads).
  at::Tensor r1;
  at::Tensor r2;

 protected:
  ScoreTerms terms(const ScoreCall& call) override;
  int64_t heads() const override { return options.num_heads(); }
  at::Tensor parameter() const override { return r1; }
};

TORCH_MODULE(Kerple);

/// Raises unless num_heads is at least 1.
POSENC_API void check(const KerpleOptions& options);

}  // namespace posenc::nn
