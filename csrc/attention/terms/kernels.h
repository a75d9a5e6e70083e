#pragma once

/// The terms of a head, each asked in turn, for kernel files only. Kernels know no term by name.

#include "attention/terms/bias/kernel.h"
#include "attention/terms/cope/kernel.h"
#include "attention/terms/decay/kernel.h"
#include "attention/terms/distance/kernel.h"
#include "attention/terms/fire/kernel.h"
#include "attention/terms/grid/kernel.h"
#include "attention/terms/heads.h"
#include "attention/terms/mask/kernel.h"
#include "attention/terms/piecewise/kernel.h"
#include "attention/terms/relative/kernel.h"
#include "attention/terms/relative_keys/kernel.h"
#include "attention/terms/sinks/kernel.h"
#include "attention/terms/softcap/kernel.h"

#include <optional>

namespace posenc::attention_ops {
namespace {

/// The terms of a head in the passes over tiles.
template <typename T>
struct TileTermsOf {
  template <template <typename> class... Term>
  class List {
   public:
    /// Elements of T that the terms need.
    static int64_t size(const Heads<T>& heads, const TileContext<T>& context) {
      return std::apply(
          [&](const auto&... head) {
            return ((head.used() ? Term<T>::size(head, context) : int64_t{0}) + ... + int64_t{0});
          },
          heads);
    }

    /// gradients: null in the forward pass.
    List(const Heads<T>& heads, const HeadGradients<T>* gradients, const TileContext<T>& context, T* at) {
      make(heads, gradients, context, at, std::index_sequence_for<Term<T>...>());
    }

    /// Calls body(term) for the terms that the head has.
    template <typename Body>
    void for_each(const Body& body) {
      std::apply([&](auto&... term) { ((term ? body(*term) : void()), ...); }, terms_);
    }
    /// The sink of a query of the head, in base 2; one term at most has one.
    double sink(int64_t query) {
      double sink = kNoSink;
      for_each([&](const auto& term) { sink = term.sink(query) == kNoSink ? sink : term.sink(query); });
      return sink;
    }
    /// Whether test(term) is true of one of them; those after it are not asked.
    template <typename Test>
    bool any(const Test& test) {
      return std::apply([&](auto&... term) { return ((term && test(*term)) || ...); }, terms_);
    }

   private:
    template <size_t... i>
    void make(const Heads<T>& heads, const HeadGradients<T>* gradients, const TileContext<T>& context, T* at,
              std::index_sequence<i...>) {
      const auto add = [&](auto& term, const auto& head, const auto* gradient) {
        using TermType = typename std::remove_reference_t<decltype(term)>::value_type;
        if (head.used()) {
          term.emplace(head, gradient, context, at);
          at += TermType::size(head, context);
        }
      };
      (add(std::get<i>(terms_), std::get<i>(heads), gradients == nullptr ? nullptr : &std::get<i>(*gradients)), ...);
    }

    std::tuple<std::optional<Term<T>>...> terms_;
  };
};
template <typename T>
using TileTerms = typename TileTermsOf<T>::template List<POSENC_ATTENTION_TERMS(Tile)>;

/// Scores of a tile: the product and all terms. Fills `mask` where the cover needs one; a term that hides keys changes
/// the cover. largest: null, or the running maximum of each query, which the product moves on; then no term may change
/// scores.
template <typename T>
void make_scores(TileTerms<T>& terms, const Visibility& visible, int64_t width, Tile& t, const Operands<T>& operands,
                 T* scores, T* mask, T* largest) {
  if (!terms.any([&](auto& term) { return term.make_product(t, operands, scores, largest); })) {
    product_of(operands, t, width, scores, largest);
  }
  terms.for_each([&](auto& term) { term.take_product(t, scores); });
  terms.for_each([&](auto& term) { term.cap_product(t, scores); });
  if (t.cover == Cover::kSome) {
    fill_mask(visible, t, mask);
  }
  terms.for_each([&](auto& term) { term.add(t, operands, mask, scores); });
  terms.for_each([&](auto& term) { term.cap_scores(t, scores); });
}

/// The terms of the heads that share keys, in decoding.
template <typename T>
struct DecodeTermsOf {
  template <template <typename> class... Term>
  class List {
   public:
    static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context) {
      return (Term<T>::size(heads, context) + ... + int64_t{0});
    }

    List(const Heads<T>* heads, const DecodeRows<T>& rows, const DecodeContext<T>& context, T* at)
        : terms_(Term<T>(heads, rows, context, std::exchange(at, at + Term<T>::size(*heads, context)))...) {}

    template <typename Body>
    void for_each(const Body& body) {
      std::apply([&](auto&... term) { ((term.used() ? body(term) : void()), ...); }, terms_);
    }
    template <typename Test>
    bool any(const Test& test) {
      return std::apply([&](auto&... term) { return ((term.used() && test(term)) || ...); }, terms_);
    }
    template <typename Test>
    bool any(const Test& test) const {
      return std::apply([&](const auto&... term) { return ((term.used() && test(term)) || ...); }, terms_);
    }

   private:
    std::tuple<Term<T>...> terms_;
  };
};
template <typename T>
using DecodeTerms = typename DecodeTermsOf<T>::template List<POSENC_ATTENTION_TERMS(Decode)>;

}  // namespace
}  // namespace posenc::attention_ops
