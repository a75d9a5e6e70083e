#pragma once

/// c tanh(score / c), for kernel files only.

#include "attention/terms/softcap/head.h"
#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

/// tanh(x) for x = score * inverse, times cap. Most scores are small next to the cap: tanh(x) / x is a polynomial in
/// x^2 up to |x| = 1/2, with 1.4e-8 of relative error.
inline cpu::Vf capped(const cpu::Vf& score, float cap, float inverse) {
  using cpu::Vf;
  const Vf x = score * Vf(inverse), square = x * x;
  if (cpu::any_lane((Vf(0.25f) < square) | (square != square))) {
    return x.tanh() * Vf(cap);
  }
  Vf p = fmadd(square, Vf(0.017141319037843748f), Vf(-0.05298924116962307f));
  p = fmadd(p, square, Vf(0.1332482899759356f));
  p = fmadd(p, square, Vf(-0.3333307189419188f));
  p = fmadd(p, square, Vf(0.9999999870693157f));
  return score * p;
}

inline cpu::Vd capped(const cpu::Vd& score, double cap, double inverse) {
  return (score * cpu::Vd(inverse)).tanh() * cpu::Vd(cap);
}

template <typename T>
class SoftcapTile : public TileTerm<T> {
 public:
  static int64_t size(const SoftcapHead<T>& /*head*/, const TileContext<T>& context) {
    return context.backward ? kTileQueries * kTileKeys : 0;
  }

  SoftcapTile(const SoftcapHead<T>& head, const SoftcapGradient<T>* /*grad*/, const TileContext<T>& context, T* at)
      : head_(head), slopes_(context.backward ? at : nullptr) {}

  bool changes_scores() const { return true; }

  void cap_product(const Tile& t, T* scores) {
    if (!head_.on_sum) {
      cap(t, scores);
    }
  }

  void cap_scores(const Tile& t, T* scores) {
    if (head_.on_sum) {
      cap(t, scores);
    }
  }

  void uncap_scores(const Tile& t, T* grad) {
    if (head_.on_sum) {
      uncap(t, grad);
    }
  }

  template <typename Body>
  bool take_products(const Tile& t, const T* /*mask*/, const Operands<T>& /*operands*/, T* grad, const Body& /*body*/) {
    if (!head_.on_sum) {
      uncap(t, grad);
    }
    return false;
  }

 private:
  void cap(const Tile& t, T* scores) {
    const T of_base_2 = static_cast<T>(head_.cap * kLog2E), inverse = T(1) / of_base_2;
    const Vec<T> one(T(1));
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      for (int64_t k = 0; k < keys.some; ++k) {
        T* to = scores + k * kTileQueries + q;
        const Vec<T> x = capped(Vec<T>::loadu(to), of_base_2, inverse);
        x.store(to);
        if (slopes_ != nullptr) {
          const Vec<T> share = x * Vec<T>(inverse);
          (one - share * share).store(slopes_ + k * kTileQueries + q);
        }
      }
    });
  }

  /// The gradients of scores from those of capped ones; 0, as of hidden keys, stays 0.
  void uncap(const Tile& t, T* grad) const {
    const Vec<T> zero(T(0));
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      for (int64_t k = 0; k < keys.some; ++k) {
        T* to = grad + k * kTileQueries + q;
        const Vec<T> g = Vec<T>::loadu(to);
        Vec<T>::blendv(g * Vec<T>::loadu(slopes_ + k * kTileQueries + q), zero, g == zero).store(to);
      }
    });
  }

  const SoftcapHead<T>& head_;
  /// Backward: of each score of the tile the derivative of the capped one.
  T* slopes_;
};

template <typename T>
class SoftcapDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }

  SoftcapDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& /*context*/, T* /*at*/)
      : head_(std::get<SoftcapHead<T>>(*heads)) {}

  bool used() const { return head_.used(); }

  void cap_product(DecodeRow<T>& row) {
    if (!head_.on_sum) {
      cap(row);
    }
  }

  void cap_scores(DecodeRow<T>& row) {
    if (head_.on_sum) {
      cap(row);
    }
  }

 private:
  void cap(DecodeRow<T>& row) const {
    const T of_base_2 = static_cast<T>(head_.cap * kLog2E), inverse = T(1) / of_base_2;
    for (int64_t k = 0; k < row.block.keys; k += Vec<T>::size()) {
      capped(Vec<T>::loadu(row.scores + k), of_base_2, inverse).store(row.scores + k);
    }
  }

  const SoftcapHead<T>& head_;
};

}  // namespace
}  // namespace posenc::attention_ops
